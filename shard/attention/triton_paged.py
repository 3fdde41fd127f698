"""Attention by Triton kernels that read the cache where it stands, through block tables.

A token that decodes is cut into splits of a fixed number of places, so that long texts keep the whole device busy; what
each amounts to is written down and merged in order. A chunk is cut into tiles of tokens. What a plan says in numbers
goes to the device at once, or, where a step is to be repeated with other numbers, to where those before stood. The
kernels are in `paged_kernels.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from shard.attention.paged_kernels import chunk_tiles, decode_merge, decode_splits
from shard.attention.span import Span
from shard.attention.tables import Tables
from shard.attention.variant import Variant
from shard.cache import Cache
from shard.device import Standing, sent

SPLIT = 256  # places
FEWEST = 16  # rows of a product, and its width
WIDE = 128  # head_dim from which on programs have half the rows
WARPS, STAGES = 4, 2
PROGRAMS = 1024  # at least, where a launch does not know how many splits there will be
MOST_BYTES = 2**28  # for what splits amount to, where it is not known how many there will be
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
    entries: Tensor  # [decodes + 1], the first split of each in `work`, and the end
    found: "Found"
    programs: int  # that take turns with the splits

    def __len__(self) -> int:
        return len(self.entries) - 1


class Found(NamedTuple):
    """What splits amount to."""

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
        self._heads, self.num_kv_heads, self._head_dim = num_heads, num_kv_heads, head_dim
        self._group = num_heads // num_kv_heads
        self._variant = variant
        self._scale = variant.scaling(head_dim)

    def plan(self, decodes: list[Span], chunks: list[Span], num_tokens: int, cache: Cache) -> Plan:
        table, tiles, *rest = sent(self.numbers(decodes, chunks, cache), cache.device)
        there: dict[int, Decodes] = {}
        if decodes:
            for window, entries, work in zip(self._variant.kinds, rest[::2], rest[1::2], strict=True):
                splits = work.view(-1, ENTRY)
                there[window] = Decodes(splits, entries, self.room(len(splits), cache.device), len(splits))
        covers_all = sum(span.length for span in [*decodes, *chunks]) == num_tokens
        return Plan(table, there, tiles.view(-1, ENTRY), self.constants(cache), covers_all)

    def frames(self, rows: int, length: int, cache: Cache) -> "Frames":
        """For up to so many tokens that decode, in sequences that are as long at most."""
        return Frames(self, self._variant.kinds, rows, length, cache)

    @property
    def split_bytes(self) -> int:
        """That most of what one split amounts to takes."""
        return 4 * self._heads * self._head_dim

    def numbers(self, decodes: list[Span], chunks: list[Span], cache: Cache) -> list[list[int]]:
        """What a plan says: the table, the tiles, and for each window the splits, before them where a token's begin."""
        tables = [span.blocks[:-(-span.end // cache.block_size)] for span in [*decodes, *chunks]]
        firsts = list(accumulate(map(len, tables), initial=0))
        tiles = [entry for first, chunk in zip(firsts[len(decodes):], chunks, strict=False)
                 for entry in tiles_of(chunk, first, self._sizes(cache).rows // self._group)]
        return [list(chain(*tables)), tiles, *self.works(decodes, firsts, cache)]

    def works(self, decodes: list[Span], firsts: Sequence[int], cache: Cache) -> list[list[int]]:
        """For each window the splits, before them where a token's begin. Blocks of a token begin in the table at its
        number in `firsts`."""
        tile, numbers = self._sizes(cache).tile, list[list[int]]()
        for window in self._variant.kinds:
            works = [work_of(span, first, window, tile) for span, first in zip(decodes, firsts, strict=False)]
            numbers += [list(accumulate((len(work) // ENTRY for work in works), initial=0)), list(chain(*works))]
        return numbers

    def room(self, num_splits: int, device: torch.device) -> Found:
        each = (num_splits, self._heads)
        return Found(*(torch.empty(shape, dtype=torch.float32, device=device)
                       for shape in (each, each, (*each, self._head_dim))))

    def constants(self, cache: Cache) -> dict[int, dict[str, int]]:
        """Of kernels, by window."""
        return {window: self._constants(window, self._sizes(cache), cache) for window in self._variant.kinds}

    def _sizes(self, cache: Cache) -> Sizes:
        return Sizes.of(self._group, self._head_dim, cache.dtype)

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
            decode_splits[decodes.programs, self.num_kv_heads](
                *read, decodes.work, decodes.entries, *decodes.found, len(decodes), *numbers, **constants)
            decode_merge[len(decodes), self._heads](
                *decodes.found, output, decodes.entries, HEAD_DIM=self._head_dim, HEAD_PAD=padded(self._head_dim),
                num_warps=1)
        if len(plan.tiles):
            chunk_tiles[len(plan.tiles), self.num_kv_heads](*read, plan.tiles, output, *numbers, **constants)
        return output

    def _constants(self, window: int, sizes: Sizes, cache: Cache) -> dict[str, int]:
        return {"CAPPED": bool(self._variant.softcap), "WINDOW": window, "GROUP": self._group,
                "HEAD_DIM": self._head_dim, "HEAD_PAD": padded(self._head_dim), "BLOCK_SIZE": cache.block_size,
                "SPLIT": SPLIT, "TILE": sizes.tile, "ROWS": sizes.rows, "num_warps": WARPS, "num_stages": STAGES}


class Frames:
    """Plans for tokens that decode, whose tensors stay where they are: what was captured with a plan is repeated with
    other numbers. They share what they are made of, so one is used at a time."""

    def __init__(self, attention: TritonAttention, windows: Sequence[int], rows: int, length: int,
                 cache: Cache) -> None:
        self._attention, self._windows, self._cache = attention, windows, cache
        self._splits = max(rows, min(rows * -(-length // SPLIT), MOST_BYTES // attention.split_bytes))
        each = (rows + 1, ENTRY * self._splits)
        self._standing = Standing([*chain(*(each for _ in windows))], torch.int32, cache.device)
        self._tables = Tables(rows, -(-length // cache.block_size), cache.device)
        self._no_tiles = torch.empty(0, ENTRY, dtype=torch.int32, device=cache.device)
        self._found = attention.room(self._splits, cache.device)

    def plan(self, rows: int) -> Plan:
        """For so many tokens, the first ones on the token axis; all are in spans."""
        standing = self._standing.lists
        programs = min(self._splits, max(rows, PROGRAMS // self._attention.num_kv_heads))
        there = {window: Decodes(work.view(-1, ENTRY), entries[:rows + 1], self._found, programs)
                 for window, entries, work in zip(self._windows, standing[::2], standing[1::2], strict=True)}
        constants = self._attention.constants(self._cache)
        return Plan(self._tables.there, there, self._no_tiles, constants, covers_all=True)

    def write(self, decodes: list[Span]) -> bool:
        """What the next step is to read, as many as its plan is for; not if there is no room."""
        tables = [(span.blocks, -(-span.end // self._cache.block_size)) for span in decodes]
        firsts = range(0, len(decodes) * self._tables.width, self._tables.width)
        works = self._attention.works(decodes, firsts, self._cache)
        if any(length > self._tables.width for _, length in tables) or not self._standing.holds(works):
            return False
        self._tables.write(tables)
        self._standing.send(works)
        return True


def work_of(span: Span, first: int, window: int, tile: int) -> list[int]:
    """The splits that a decode looks into, whose blocks begin at `first` in the table."""
    begin = max(0, span.end - window) // tile * tile if window else 0
    splits = range(begin // SPLIT, -(-span.end // SPLIT))
    work = [span.row, first, span.start, 0] * len(splits)
    work[3::ENTRY] = splits
    return work


def tiles_of(chunk: Span, first: int, each: int) -> Iterator[int]:
    """Of a chunk whose blocks begin at `first` in the table; so many tokens in each."""
    for start in range(0, chunk.length, each):
        yield from (chunk.row + start, first, chunk.start + start, min(each, chunk.length - start))


def padded(head_dim: int) -> int:
    """As wide as products are computed."""
    width: int = next_power_of_2(head_dim)
    return max(FEWEST, width)
