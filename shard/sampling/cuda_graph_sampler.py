"""Sampling inside a captured step, for sequences that need only the best token or a draw, with or without filters.

The result has the same bits as that of `sampler.py` for the same logits, or a flag that `sampler.py` must decide.
Nothing here waits for the device.
"""

from collections.abc import Sequence as GenericSequence
from typing import NamedTuple

import torch
from torch import Tensor

from shard.hardware.device_transfers import StaticDeviceBuffers
from shard.sampling.best_candidates import NUM_FEW_CANDIDATES, find_candidates
from shard.sampling.filters import FILTERS
from shard.sampling.logits_processors import needs_processing
from shard.sampling.logits_with_normalizers import compute_normalizers
from shard.sampling.sampler import changes_logits, compute_logit_divisor
from shard.sampling.token_selection import draw_uniforms, list_filter_columns, select_tokens
from shard.state.sequence import Sequence

# The parameters of the filters, uniforms, whether logprobs are raw, and divisors of logits; their values in rows beyond
# those of the sequences.
PADDING_VALUES = [*[0.0] * len(FILTERS), 0.0, 0.0, 1.0]


class CudaGraphSamples(NamedTuple):
    """Results of a captured sampling: one entry per row."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    is_valid: Tensor  # [rows] bool; if false, `sampler.py` must decide


def can_sample_in_cuda_graph(sequence: Sequence) -> bool:
    """Whether the sequence needs no more than this module does, which does not change while the sequence runs."""
    if sequence.can_sample_in_cuda_graph is None:
        sequence.can_sample_in_cuda_graph = not (
            sequence.grammar_id or sequence.sampling.top_n_tokens or needs_processing(sequence)
            or (sequence.sampling.raw_logprobs and changes_logits(sequence)))
    return sequence.can_sample_in_cuda_graph


class CudaGraphSampler:
    """Sampler for captured steps of up to `max_rows` rows. Sampling parameters are in columns with fixed addresses."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._parameter_columns = StaticDeviceBuffers([max_rows] * len(PADDING_VALUES), torch.float64, device,
                                                      PADDING_VALUES)

    def write_parameters(self, sequences: GenericSequence[Sequence]) -> None:
        """Send the sampling parameters of the next step."""
        sampling_params = [sequence.sampling for sequence in sequences]
        uniforms = draw_uniforms([s.sampling_key for s in sequences], [len(s.tokens) for s in sequences])
        self._parameter_columns.copy_to_device([
            *list_filter_columns(sampling_params, uniforms),
            [compute_logit_divisor(params.temperature) for params in sampling_params]])

    def sample_greedy(self, logits: Tensor) -> CudaGraphSamples:
        """Pick the best token of every row. The logits are not changed."""
        normalized = compute_normalizers(logits)
        logprobs = normalized.gather_logprobs(normalized.best_tokens)
        return CudaGraphSamples(normalized.best_tokens, logprobs, are_finite(logits, logprobs))

    def sample_random(self, logits: Tensor) -> CudaGraphSamples:
        """Draw a token for every row. The logits are not changed."""
        *filters, uniforms, raw, divisors = [column[:len(logits)] for column in self._parameter_columns.device_lists]
        candidates = find_candidates(compute_normalizers(logits / divisors.float()[:, None]), NUM_FEW_CANDIDATES)
        selection = select_tokens(candidates, uniforms, raw.bool(), {
            name: column.float() for name, column in zip(FILTERS, filters, strict=True)}, is_captured=True)
        return CudaGraphSamples(selection.tokens, selection.logprobs,
                                selection.is_decided & are_finite(logits, selection.logprobs))


def are_finite(logits: Tensor, logprobs: Tensor) -> Tensor:  # [rows] bool
    return logits.sum(-1).isfinite() & logprobs.isfinite()
