"""Inputs of one forward pass, built from the layout of a step and used once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.kv_cache import KVCache, make_int64_tensor
from shard.state.step import StepLayout

DUMMY_TOKEN = 0


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens], where each token's key and value go
    sampled_rows: Tensor  # indices of the tokens whose logits are needed, in the order of `Step.sampled_sequences`
    attention_plan: Any  # of the attention backend, the same for every layer


def build_forward_inputs(layout: StepLayout, cache: KVCache, attention: AttentionBackend,
                         device: torch.device) -> ForwardInputs:
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for sequence, (_, start, length, blocks) in zip(layout.sequences, layout.spans, strict=True):
        tokens += sequence.tokens[start:start + length]
        if layout.drafts:
            tokens += layout.drafts.get(sequence.id, ())
        positions += range(start, start + length)
        slots += cache.list_slots(blocks, start, start + length)
    for _ in range(layout.num_dummy_rows):
        tokens.append(DUMMY_TOKEN)
        positions.append(0)
        slots.append(cache.scratch_slot)
    columns = make_int64_tensor(tokens + positions + slots).view(3, -1).to(device)  # [3, tokens]
    plan = attention.plan(layout.spans[:layout.num_decodes], layout.spans[layout.num_decodes:], len(tokens), cache)
    return ForwardInputs(columns[0], columns[1], columns[2], make_int64_tensor(layout.sampled_rows).to(device), plan)
