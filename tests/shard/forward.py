"""A model's forward pass over one prompt, on one rank or several, and that of transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from shard.attention.backend import make_attention
from shard.attention.inputs import build
from shard.attention.kv_cache import Cache
from shard.attention.variant import Variant
from shard.checkpoint.reader import Weights
from shard.models.decoder import Decoder
from shard.models.read_config import read_config
from shard.models.registry import load_model
from shard.parallel.group import Group
from shard.state.sequence import Sampling, Sequence
from shard.state.transaction import Chunk, Step
from tests.shard.side_by_side import side_by_side

CPU = torch.device("cpu")
PROMPT: list[int] = torch.randint(2, 480, (100,), generator=torch.Generator().manual_seed(3)).tolist()


@dataclass
class Outcome:
    hidden: Tensor  # [tokens, hidden]
    logits: Tensor | None  # [tokens, vocabulary]


def read_model(folder: Path, dtype: torch.dtype, group: Group, quantize: str = "") -> Decoder:
    config = read_config(folder)
    with Weights(folder, dtype, CPU, config.quantization, quantize) as weights:
        model = load_model(config, weights, group)
        assert weights.unclaimed() == []
    return model


def run(model: Decoder, group: Group, dtype: torch.dtype, backend: str = "reference",
        *lengths: int) -> Outcome:
    """Run one pass over a batch of prefixes of the prompt with these lengths; by default, over the whole prompt."""
    chunks, num_blocks = list[Chunk](), 0
    for number, length in enumerate(lengths or (len(PROMPT),)):
        first, num_blocks = num_blocks, num_blocks - -length // 16
        chunks.append(Chunk(sequence(number, length, [*range(first, num_blocks)]), 0, length))
    cache = Cache(model.num_layers, model.num_kv_heads, model.head_dim, block_size=16, num_blocks=num_blocks,
                  dtype=dtype, device=CPU)
    attention = make_attention(backend, model.config.num_heads // group.size, model.num_kv_heads, model.head_dim,
                               Variant(model.config.scale, model.config.softcap, model.config.windows))
    with torch.inference_mode():
        inputs = build(Step(chunks=chunks), cache, attention, CPU)
        hidden = model.hidden(inputs, cache, attention).clone()
        return Outcome(hidden, model.logits(hidden))


def sequence(number: int, length: int, blocks: list[int]) -> Sequence:
    return Sequence(id=number, tokens=PROMPT[:length], num_prompt_tokens=length, num_given=length, computed=0,
                    num_cached=0, blocks=blocks, key=0, sampling=Sampling(), prompt_logprobs=False, adapter=0,
                    grammar=0)


def outcomes(folder: Path, dtype: torch.dtype, num_ranks: int = 1, backend: str = "reference",
             length: int = len(PROMPT)) -> list[Outcome]:
    return side_by_side(num_ranks, lambda group: run(read_model(folder, dtype, group), group, dtype, backend, length))


@cache
def oracle(folder: Path, dtype: torch.dtype, length: int = len(PROMPT)) -> Outcome:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.inference_mode():
        said = model(torch.tensor([PROMPT[:length]]), output_hidden_states=True)
    return Outcome(said.hidden_states[-1][0], said.logits[0].float())


def agrees_shared(folder: Path) -> None:
    """Compare with transformers in float32 and bfloat16, on one, two and four ranks."""
    for dtype in (torch.float32, torch.bfloat16):
        for num_ranks in (1, 2, 4):
            agrees(folder, dtype, num_ranks)


def agrees_everywhere(folder: Path) -> None:
    """Compare with transformers in both types, with both attention backends, on one, two and four ranks."""
    for dtype, num_ranks, backend in ((torch.float32, 1, "reference"), (torch.float32, 2, "cpu"),
                                      (torch.float32, 4, "reference"), (torch.bfloat16, 1, "cpu"),
                                      (torch.bfloat16, 2, "reference")):
        agrees(folder, dtype, num_ranks, backend)


def agrees(folder: Path, dtype: torch.dtype, num_ranks: int = 1, backend: str = "reference", *,
           measure: Callable[[Tensor, Tensor], float] | None = None, length: int = len(PROMPT)) -> None:
    """Compare with transformers: float32 agrees, and bfloat16's error is below 1.25 times that of transformers."""
    measure = measure or distance
    first, *others = outcomes(folder, dtype, num_ranks, backend, length)
    exact, same = oracle(folder, torch.float32, length), oracle(folder, dtype, length)
    assert first.logits is not None
    assert first.logits.dtype == torch.float32
    assert all(other.logits is None and torch.equal(other.hidden, first.hidden) for other in others)
    for ours, theirs, truth in ((first.hidden, same.hidden, exact.hidden), (first.logits, same.logits, exact.logits)):
        if dtype == torch.float32:  # rounding errors scale with the size of the summands
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=max(1e-4, 2e-5 * usual_size(theirs)))
        else:
            assert measure(ours, truth) < 1.25 * measure(theirs, truth)


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).square().mean().sqrt())


def usual_size(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def usual_distance(ours: Tensor, theirs: Tensor) -> float:
    """Return the RMS distance of the median token: rounding may send single tokens to other experts."""
    return float((ours.float() - theirs.float()).square().mean(-1).sqrt().median())
