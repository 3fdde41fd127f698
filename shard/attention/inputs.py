"""Inputs of one forward pass, built from a step and used once.

The token axis has the decodes first, then the chunks, in the order of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shard.attention.backend import Attention
from shard.attention.kv_cache import Cache
from shard.attention.span import Span, integers
from shard.state.transaction import Step

DUMMY_TOKEN = 0


@dataclass(frozen=True, slots=True)
class Inputs:
    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens], where each token's key and value go
    sampled: Tensor  # [rows], indices of the tokens whose logits are needed, in the order of `Step.yielding`
    plan: Any  # of the attention backend, the same for every layer


def build(step: Step, cache: Cache, attention: Attention, device: torch.device) -> Inputs:
    spans = list(place(step))
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for sequence, span in zip(step.sequences, spans, strict=True):
        tokens += sequence.tokens[span.start:span.end]
        positions += range(span.start, span.end)
        slots += cache.slots(span.blocks, span.start, span.end)
    if len(tokens) == 1:  # a product may give a single row other bits, so it gets a dummy beside it
        tokens, positions, slots = [*tokens, DUMMY_TOKEN], [*positions, 0], [*slots, cache.scratch_slot]
    columns = integers(tokens + positions + slots).view(3, -1).to(device)  # [3, tokens]
    num_decodes = len(step.decodes)
    plan = attention.plan(spans[:num_decodes], spans[num_decodes:], len(tokens), cache)
    return Inputs(columns[0], columns[1], columns[2], integers(sampled(step, spans)).to(device), plan)


def place(step: Step) -> Iterator[Span]:
    """Yield the span of each of the step's sequences on the token axis."""
    row = len(step.decodes)
    for i, sequence in enumerate(step.decodes):
        yield Span(i, len(sequence.tokens) - 1, 1, sequence.blocks)
    for chunk in step.chunks:
        yield Span(row, chunk.start, chunk.length, chunk.sequence.blocks)
        row += chunk.length


def sampled(step: Step, spans: list[Span]) -> list[int]:
    """Return the last row of each sequence in `Step.yielding`."""
    num_decodes = len(step.decodes)
    chunks = zip(step.chunks, spans[num_decodes:], strict=True)
    return [*range(num_decodes), *(span.row + span.length - 1 for chunk, span in chunks if chunk.completes)]
