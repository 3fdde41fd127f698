"""Inputs of one forward pass. Those of a recorded one keep their addresses and are written again for each step."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shard.attention.kv_cache import KVCache, make_int64_tensor
from shard.state.step import StepLayout

DUMMY_TOKEN = 0


@dataclass(frozen=True, slots=True)
class ModelInputs:
    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens], where each token's key and value go
    sampled_rows: Tensor  # indices of the tokens whose logits are needed, in the order of `StepLayout.sampled_rows`
    attention_plan: Any  # of the attention backend, the same for every layer


def make_token_columns(layout: StepLayout, cache: KVCache, num_dummy_rows: int) -> Tensor:
    """Return tokens, positions and slots of the layout's rows and of dummy rows behind them, `[3, rows]`."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for sequence, (_, start, length, blocks) in zip(layout.sequences, layout.spans, strict=True):
        tokens += sequence.tokens[start:start + length]
        if layout.drafts:
            tokens += layout.drafts.get(sequence.id, ())
        positions += range(start, start + length)
        slots += cache.list_slots(blocks, start, start + length)
    tokens += [DUMMY_TOKEN] * num_dummy_rows
    positions += [0] * num_dummy_rows
    slots += [cache.scratch_slot] * num_dummy_rows
    return make_int64_tensor(tokens + positions + slots).view(3, -1)
