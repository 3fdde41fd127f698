"""Sampling inside a captured step, for sequences that need only the best token or a draw, with or without filters.

The result has the same bits as that of `sampler.py` for the same logits, or a flag that `sampler.py` must decide.
Nothing here waits for the device.
"""

from collections.abc import Sequence as Rows
from typing import NamedTuple

import torch
from torch import Tensor

from shard.host.device import Standing
from shard.sampling.candidates import FEW, Finder
from shard.sampling.filters import FILTERS
from shard.sampling.penalties import is_processed
from shard.sampling.random_draws import uniforms
from shard.sampling.sampler import divisor, wants_raw
from shard.sampling.selection import Asked, pick
from shard.state.sequence import Sequence

FILTERED = len(FILTERS)
COLUMNS = FILTERED + 3  # parameters of the filters, draws, divisors of logits, and whether logprobs are raw


class Found(NamedTuple):
    """Results of a captured sampling: one entry per row."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    fine: Tensor  # [rows] bool; if false, `sampler.py` must decide


def is_plain(sequence: Sequence) -> bool:
    """Whether the sequence needs no more than this module does, which does not change while the sequence runs."""
    if sequence.plain is None:
        sequence.plain = not (sequence.grammar or sequence.sampling.top_n_tokens or is_processed(sequence)
                              or wants_raw(sequence))
    return sequence.plain


def is_drawn(sequences: Rows[Sequence]) -> bool:
    """Whether any of the sequences is drawn rather than greedy."""
    return any(sequence.sampling.temperature for sequence in sequences)


class Picker:
    """Sampler for captured steps of up to `rows` rows. Sampling parameters are in columns with fixed addresses."""

    def __init__(self, rows: int, vocabulary_size: int, device: torch.device) -> None:
        self._finder = Finder(vocabulary_size)
        whoever_is_nobody = [*[0.0] * (FILTERED + 1), 1.0, 0.0]
        self._columns = Standing([rows] * COLUMNS, torch.float64, device, whoever_is_nobody)

    def write(self, sequences: Rows[Sequence], indices: list[int]) -> None:
        """Send the sampling parameters of the next step; `indices` are those of its tokens in their sequences."""
        samplings = [sequence.sampling for sequence in sequences]
        filters = [[getattr(one, name) if one.temperature else 0 for one in samplings] for name in FILTERS]
        drawn = uniforms([sequence.key for sequence in sequences], indices).tolist()
        draws = [draw if one.temperature else 0.0 for draw, one in zip(drawn, samplings, strict=True)]
        divisors = [divisor(one.temperature) for one in samplings]
        self._columns.send([*filters, draws, divisors, [one.raw_logprobs for one in samplings]])

    def best(self, logits: Tensor) -> Found:
        """Pick the best token of every row. The logits are not changed."""
        tokens = self._finder.best(logits)
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        return Found(tokens, logprobs, are_finite(logits, logprobs))

    def drawn(self, logits: Tensor) -> Found:
        """Draw a token for every row. The logits are not changed."""
        columns = [column[:len(logits)] for column in self._columns.lists]
        draws, divisors, raw = columns[FILTERED:]
        filters = dict(zip(FILTERS, (column.float() for column in columns), strict=False))
        cooled = logits / divisors.float()[:, None]
        candidates = self._finder.candidates(cooled, cooled.log_softmax(-1), FEW)
        picked = pick(candidates, Asked(draws, raw.bool(), filters), captured=True)
        return Found(picked.tokens, picked.logprobs, picked.decided & are_finite(logits, picked.logprobs))


def are_finite(logits: Tensor, logprobs: Tensor) -> Tensor:  # [rows] bool
    return logits.sum(-1).isfinite() & logprobs.isfinite()
