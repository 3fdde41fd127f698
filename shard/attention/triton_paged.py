"""Attention by Triton kernels that read the cache where it stands, through block tables.

A token that decodes is cut into splits of a fixed number of places, so that long texts keep the whole device busy; what
each amounts to is written down and merged in order. A chunk is cut into tiles of tokens. What a plan says in numbers
goes to the device at once. The kernels are in `paged_kernels.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from shard.attention.paged_kernels import chunk_tiles, decode_merge, decode_splits
from shard.attention.span import Span
from shard.attention.variant import Variant
from shard.cache import Cache
from shard.device import sent

SPLIT = 256  # places
FEWEST = 16  # rows of a product, and its width
WIDE = 128  # head_dim from which on programs have half the rows
WARPS, STAGES = 4, 2
ENTRY = 4  # numbers that say what a program is to do


class Sizes(NamedTuple):
    """Of programs: as large as their numbers fit into registers, on cards from compute capability 8.0 on. Tokens that
    decode have as many rows as chunks, most of them empty: a product of another shape would add up in another order."""

    tile: int  # places that are read at once
    rows: int  # heads of tokens

    @classmethod
    def of(cls, group: int, head_dim: int, dtype: torch.dtype) -> "Sizes":
        least = max(FEWEST, next_power_of_2(group))
        if dtype.itemsize > 2:
            return cls(FEWEST, least)
        return cls(2 * FEWEST, max(least, 64 if head_dim <= WIDE else 32))


@dataclass(frozen=True, slots=True)
class Decodes:
    """Of a step, for layers of one window."""

    work: Tensor  # [splits, 4]: row on the token axis, first block in the table, position, number of the split
    rows: Tensor  # [decodes], on the token axis
    entries: Tensor  # [decodes + 1], the first split of each in `work`, and the end
    best: Tensor  # [splits, heads], the greatest exponent of each
    total: Tensor  # [splits, heads]
    mixed: Tensor  # [splits, heads, head_dim]


@dataclass(frozen=True, slots=True)
class Plan:
    table: Tensor  # the blocks of all spans, one span's behind the other's
    decodes: dict[int, Decodes]  # by window; empty if nobody decodes
    tiles: Tensor  # [tiles, 4]: first row on the token axis, first block in the table, first position, tokens
    constants: dict[int, dict[str, int]]  # of kernels, by window
    covers_all: bool  # every token is in a span


class TritonAttention:
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, variant: Variant) -> None:
        self._heads, self._kv_heads, self._head_dim = num_heads, num_kv_heads, head_dim
        self._group = num_heads // num_kv_heads
        self._variant = variant
        self._scale = variant.scaling(head_dim)

    def plan(self, decodes: list[Span], chunks: list[Span], num_tokens: int, cache: Cache) -> Plan:
        spans = [*decodes, *chunks]
        tables = [span.blocks[:-(-span.end // cache.block_size)] for span in spans]
        firsts = list(accumulate(map(len, tables), initial=0))
        sizes = Sizes.of(self._group, self._head_dim, cache.dtype)
        tiles = [entry for first, chunk in zip(firsts[len(decodes):], chunks, strict=False)
                 for entry in tiles_of(chunk, first, sizes.rows // self._group)]
        numbers = [list(chain(*tables)), tiles, [span.row for span in decodes]]
        windows = self._variant.kinds if decodes else []
        for window in windows:
            works = [list(work_of(span, first, window, sizes.tile))
                     for span, first in zip(decodes, firsts, strict=False)]
            numbers += [list(chain(*works)), list(accumulate((len(work) // ENTRY for work in works), initial=0))]
        table, tiles_there, rows, *rest = sent(numbers, cache.device)
        found = {window: self._decodes(work.view(-1, ENTRY), rows, entries)
                 for window, work, entries in zip(windows, rest[::2], rest[1::2], strict=True)}
        constants = {window: self._constants(window, sizes, cache) for window in self._variant.kinds}
        return Plan(table, found, tiles_there.view(-1, ENTRY), constants,
                    sum(span.length for span in spans) == num_tokens)

    def _decodes(self, work: Tensor, rows: Tensor, entries: Tensor) -> Decodes:
        each = (len(work), self._heads)
        best, total, mixed = (torch.empty(shape, dtype=torch.float32, device=work.device)
                              for shape in (each, each, (*each, self._head_dim)))
        return Decodes(work, rows, entries, best, total, mixed)

    def run(self, queries: Tensor, cache: Cache, layer: int, plan: Plan) -> Tensor:
        """`queries` is [tokens, heads, head_dim], of which tokens may stand apart; the result [tokens, heads *
        head_dim]."""
        make = torch.empty if plan.covers_all else torch.zeros
        output = make(len(queries), self._heads * self._head_dim, dtype=queries.dtype, device=queries.device)
        read = queries, cache.keys[layer], cache.values[layer], plan.table
        numbers = queries.stride(0), cache.width, self._scale, self._variant.softcap
        window = self._variant.window(layer)
        constants = plan.constants[window]
        if plan.decodes:
            decodes = plan.decodes[window]
            found = decodes.best, decodes.total, decodes.mixed
            decode_splits[len(decodes.work), self._kv_heads](*read, decodes.work, *found, *numbers, **constants)
            decode_merge[len(decodes.rows), self._heads](
                *found, output, decodes.rows, decodes.entries, HEAD_DIM=self._head_dim,
                HEAD_PAD=padded(self._head_dim), num_warps=1)
        if len(plan.tiles):
            chunk_tiles[len(plan.tiles), self._kv_heads](*read, plan.tiles, output, *numbers, **constants)
        return output

    def _constants(self, window: int, sizes: Sizes, cache: Cache) -> dict[str, int]:
        return {"CAPPED": bool(self._variant.softcap), "WINDOW": window, "GROUP": self._group,
                "HEAD_DIM": self._head_dim, "HEAD_PAD": padded(self._head_dim), "BLOCK_SIZE": cache.block_size,
                "SPLIT": SPLIT, "TILE": sizes.tile, "ROWS": sizes.rows, "num_warps": WARPS, "num_stages": STAGES}


def work_of(span: Span, first: int, window: int, tile: int) -> Iterator[int]:
    """The splits that a decode looks into, whose blocks begin at `first` in the table."""
    begin = max(0, span.end - window) // tile * tile if window else 0
    for split in range(begin // SPLIT, -(-span.end // SPLIT)):
        yield from (span.row, first, span.start, split)


def tiles_of(chunk: Span, first: int, each: int) -> Iterator[int]:
    """Of a chunk whose blocks begin at `first` in the table; so many tokens in each."""
    for start in range(0, chunk.length, each):
        yield from (chunk.row + start, first, chunk.start + start, min(each, chunk.length - start))


def padded(head_dim: int) -> int:
    """As wide as products are computed."""
    width: int = next_power_of_2(head_dim)
    return max(FEWEST, width)
