"""Reference attention in plain torch, on any device: simple and slow.

Every span is computed by itself, in float32, so a row's bits do not depend on other spans. They do depend on how a
prompt is cut into chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shard.attention.kv_cache import Cache
from shard.attention.span import Span, integers
from shard.attention.variant import Variant

PIECE = 128  # tokens


@dataclass(frozen=True, slots=True)
class Look:
    """Cache slots and mask of one span."""

    rows: slice  # on the token axis
    slots: Tensor  # [places], from the sequence's first token to the span's last
    hidden: Tensor  # [length, places], True where a position is later than the token or outside its window


class ReferenceAttention:
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, variant: Variant) -> None:
        self._shape = (num_kv_heads, num_heads // num_kv_heads, head_dim)
        self._variant = variant
        self._scale = variant.scaling(head_dim)

    def plan(self, decodes: list[Span], chunks: list[Span], num_tokens: int,  # noqa: ARG002
             cache: Cache) -> dict[int, list[Look]]:
        """Return the spans' slots and masks by window size."""
        spans = [*decodes, *(piece for chunk in chunks for piece in pieces(chunk))]
        return {window: [look(span, cache, window) for span in spans] for window in self._variant.kinds}

    def run(self, queries: Tensor, cache: Cache, layer: int, plan: dict[int, list[Look]]) -> Tensor:
        """`queries` is [tokens, heads, head_dim], the result [tokens, heads * head_dim]."""
        output = torch.zeros_like(queries)
        for place in plan[self._variant.window(layer)]:
            keys, values = (self._read(rows[layer], place.slots) for rows in (cache.keys, cache.values))
            output[place.rows] = self._attend(queries[place.rows].float(), keys, values, place.hidden)
        return output.flatten(1)

    def _read(self, rows: Tensor, slots: Tensor) -> Tensor:
        kv_heads, _, head_dim = self._shape
        return rows.index_select(0, slots).float().view(-1, kv_heads, head_dim).transpose(0, 1)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
        """`queries` is [length, heads, head_dim], `keys` and `values` are [kv_heads, places, head_dim]."""
        grouped = queries.view(-1, *self._shape).permute(1, 2, 0, 3)  # [kv_heads, group, length, head_dim]
        scores = torch.matmul(grouped, keys[:, None].mT) * self._scale  # [kv_heads, group, length, places]
        if self._variant.softcap:
            scores = self._variant.softcap * (scores / self._variant.softcap).tanh()
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.matmul(weights, values[:, None]).permute(2, 0, 1, 3).flatten(1, 2)


def pieces(chunk: Span) -> Iterator[Span]:
    """Cut a chunk, since the scores of a long chunk far into a prompt would not fit into memory together."""
    for first in range(0, chunk.length, PIECE):
        yield Span(chunk.row + first, chunk.start + first, min(PIECE, chunk.length - first), chunk.blocks)


def look(span: Span, cache: Cache, window: int) -> Look:
    slots = integers(cache.slots(span.blocks, 0, span.end)).to(cache.device)
    places, own = (torch.arange(first, span.end, device=cache.device) for first in (0, span.start))
    ahead = places - own[:, None]  # [length, places]
    hidden = (ahead > 0) | (ahead <= -window) if window else ahead > 0
    return Look(slice(span.row, span.row + span.length), slots, hidden)
