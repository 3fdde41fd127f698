"""A model's forward pass over one prompt, on one rank or several, and that of transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from support.model_runs.ranks_in_threads import run_on_ranks
from torch import Tensor
from transformers import AutoModelForCausalLM

from shard.attention.backend import AttentionOptions, make_attention_backend
from shard.attention.kv_cache import KVCache
from shard.checkpoint.reader import CheckpointReader
from shard.models.decoder import Decoder
from shard.models.registry import load_model, load_model_config
from shard.parallel.group import RankGroup
from shard.runner.model_runner import build_model_inputs
from shard.state.sequence import Sequence
from shard.state.step import PrefillChunk, Step, lay_out_step

CPU = torch.device("cpu")
PROMPT_TOKENS: list[int] = torch.randint(2, 480, (100,), generator=torch.Generator().manual_seed(3)).tolist()


@dataclass
class ForwardOutput:
    hidden: Tensor  # [tokens, hidden]
    logits: Tensor | None  # [tokens, vocabulary]


def load_decoder_model(folder: Path, dtype: torch.dtype, group: RankGroup, quantize: str = "") -> Decoder:
    config = load_model_config(folder)
    with CheckpointReader(folder, dtype, CPU, config.quantization, quantize) as weights:
        model = load_model(config, weights, group)
        assert weights.list_unclaimed_names() == []
    return model


def run_forward(model: Decoder, group: RankGroup, dtype: torch.dtype, backend: str = "reference",
                *prefix_lengths: int) -> ForwardOutput:
    """Run one pass over a batch of prefixes of the prompt with these lengths; by default, over the whole prompt."""
    chunks, num_blocks = list[PrefillChunk](), 0
    for sequence_id, length in enumerate(prefix_lengths or (len(PROMPT_TOKENS),)):
        first, num_blocks = num_blocks, num_blocks - -length // 16
        chunks.append(PrefillChunk(make_sequence(sequence_id, length, [*range(first, num_blocks)]), 0, length))
    cache = KVCache(model.num_layers, model.num_kv_heads, model.head_dim, block_size=16, num_blocks=num_blocks,
                    dtype=dtype, device=CPU)
    attention = make_attention_backend(backend, model.config.num_heads // group.size, model.num_kv_heads,
                                       model.head_dim,
                                       AttentionOptions(model.config.attention_scale, model.config.attention_softcap,
                                                        model.config.sliding_windows))
    with torch.inference_mode():
        inputs = build_model_inputs(lay_out_step(Step(chunks=chunks)), cache, attention, CPU)
        hidden = model.forward(inputs, cache, attention).clone()
        return ForwardOutput(hidden, model.compute_logits(hidden))


def make_sequence(sequence_id: int, length: int, blocks: list[int]) -> Sequence:
    return Sequence.from_prompt(sequence_id, PROMPT_TOKENS[:length], blocks)


def run_forward_on_ranks(folder: Path, dtype: torch.dtype, num_ranks: int = 1, backend: str = "reference",
                         length: int = len(PROMPT_TOKENS)) -> list[ForwardOutput]:
    return run_on_ranks(num_ranks, lambda group: run_forward(load_decoder_model(folder, dtype, group), group, dtype,
                                                             backend, length))


@cache
def run_transformers_model(folder: Path, dtype: torch.dtype, length: int = len(PROMPT_TOKENS)) -> ForwardOutput:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.inference_mode():
        model_output = model(torch.tensor([PROMPT_TOKENS[:length]]), output_hidden_states=True)
    return ForwardOutput(model_output.hidden_states[-1][0], model_output.logits[0].float())


def check_decoder_on_all_rank_counts(folder: Path) -> None:
    """Compare with transformers in float32 and bfloat16, on one, two and four ranks."""
    for dtype in (torch.float32, torch.bfloat16):
        for num_ranks in (1, 2, 4):
            check_decoder_matches_transformers(folder, dtype, num_ranks)


def check_decoder_on_backends_and_ranks(folder: Path) -> None:
    """Compare with transformers in both types, with both attention backends, on one, two and four ranks."""
    for dtype, num_ranks, backend in ((torch.float32, 1, "reference"), (torch.float32, 2, "cpu"),
                                      (torch.float32, 4, "reference"), (torch.bfloat16, 1, "cpu"),
                                      (torch.bfloat16, 2, "reference")):
        check_decoder_matches_transformers(folder, dtype, num_ranks, backend)


def check_decoder_matches_transformers(folder: Path, dtype: torch.dtype, num_ranks: int = 1, backend: str = "reference",
                                       *, distance_function: Callable[[Tensor, Tensor], float] | None = None,
                                       length: int = len(PROMPT_TOKENS)) -> None:
    """Compare with transformers: float32 agrees, and bfloat16's error is below 1.25 times that of transformers."""
    distance_function = distance_function or rms_distance
    first, *others = run_forward_on_ranks(folder, dtype, num_ranks, backend, length)
    float32_reference, same_dtype_reference = (run_transformers_model(folder, torch.float32, length),
                                               run_transformers_model(folder, dtype, length))
    assert first.logits is not None
    assert first.logits.dtype == torch.float32
    assert all(other.logits is None and torch.equal(other.hidden, first.hidden) for other in others)
    for actual, same_dtype, exact in ((first.hidden, same_dtype_reference.hidden, float32_reference.hidden),
                                      (first.logits, same_dtype_reference.logits, float32_reference.logits)):
        if dtype == torch.float32:  # rounding errors scale with the size of the summands
            torch.testing.assert_close(actual, same_dtype, rtol=1e-4,
                                       atol=max(1e-4, 2e-5 * root_mean_square(same_dtype)))
        else:
            assert distance_function(actual, exact) < 1.25 * distance_function(same_dtype, exact)


def rms_distance(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected.float()).square().mean().sqrt())


def root_mean_square(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def median_token_distance(actual: Tensor, expected: Tensor) -> float:
    """Return the RMS distance of the median token: rounding may send single tokens to other experts."""
    return float((actual.float() - expected.float()).square().mean(-1).sqrt().median())
