"""Inputs of one forward pass, built from a step and used once.

The token axis has the decodes first, then the chunks, in the order of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.kv_cache import KVCache
from shard.attention.token_span import TokenSpan, make_int64_tensor
from shard.state.step import Step

DUMMY_TOKEN = 0


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens], where each token's key and value go
    sampled_rows: Tensor  # indices of the tokens whose logits are needed, in the order of `Step.sampled_sequences`
    attention_plan: Any  # of the attention backend, the same for every layer


def build_forward_inputs(step: Step, cache: KVCache, attention: AttentionBackend,
                         device: torch.device) -> ForwardInputs:
    spans = list(iter_token_spans(step))
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for sequence, span in zip(step.sequences, spans, strict=True):
        tokens += sequence.tokens[span.start:span.end]
        positions += range(span.start, span.end)
        slots += cache.list_slots(span.blocks, span.start, span.end)
    if len(tokens) == 1:  # docs/exactness.md, "A single row is computed as two"
        tokens, positions, slots = [*tokens, DUMMY_TOKEN], [*positions, 0], [*slots, cache.scratch_slot]
    columns = make_int64_tensor(tokens + positions + slots).view(3, -1).to(device)  # [3, tokens]
    num_decodes = len(step.decodes)
    plan = attention.plan(spans[:num_decodes], spans[num_decodes:], len(tokens), cache)
    return ForwardInputs(columns[0], columns[1], columns[2],
                         make_int64_tensor(list_sampled_rows(step, spans)).to(device), plan)


def iter_token_spans(step: Step) -> Iterator[TokenSpan]:
    """Yield the span of each of the step's sequences on the token axis, with its positions and blocks: what attention
    reads and writes. (`find_chunk_rows` gives rows alone.)"""
    row = len(step.decodes)
    for i, sequence in enumerate(step.decodes):
        yield TokenSpan(i, len(sequence.tokens) - 1, 1, sequence.blocks)
    for chunk in step.chunks:
        yield TokenSpan(row, chunk.start, chunk.length, chunk.sequence.blocks)
        row += chunk.length


def list_sampled_rows(step: Step, spans: list[TokenSpan]) -> list[int]:
    """Return the row of the last token of each sequence in `Step.sampled_sequences`: of every decode, and of every
    chunk that is the last of its sequence. These rows are sampled."""
    num_decodes = len(step.decodes)
    chunks = zip(step.chunks, spans[num_decodes:], strict=True)
    return [*range(num_decodes), *(span.first_row + span.length - 1 for chunk, span in chunks if chunk.is_last)]
