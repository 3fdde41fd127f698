"""Paged attention by the Triton kernels of `triton_kernels.py`.

A decode is cut into splits of a fixed number of positions, so that long sequences use the whole device; the splits'
results are stored and merged in order. A chunk is cut into tiles of tokens. A plan's integers are copied to the device
in one piece, or, for captured steps, to the same addresses every time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from shard.attention.block_tables import Tables
from shard.attention.kv_cache import Cache
from shard.attention.span import Span
from shard.attention.triton_kernels import chunk_tiles, decode_merge, decode_splits
from shard.attention.variant import Variant
from shard.host.device import Standing, sent

SPLIT = 256  # positions
FEWEST = 16  # smallest size of each axis of tl.dot
WIDE = 128  # head_dim above which programs have half the rows
WARPS, STAGES = 4, 2
PROGRAMS = 1024  # target over all KV heads, where a launch does not know its number of splits; never fewer than decodes
MOST_BYTES = 2**28  # limit of the splits' results in captured steps, where the number of splits is not known
ENTRY = 4  # integers per entry of `work` and `tiles`


class Sizes(NamedTuple):
    """Sizes of a program's tiles, as large as registers allow on GPUs of compute capability 8.0 and above.

    Decodes use as many rows as chunks, most of them padding: a tl.dot of another shape would add in another order.
    """

    tile: int  # positions read at once
    rows: int  # query rows: heads of one or several tokens

    @classmethod
    def of(cls, group: int, head_dim: int, dtype: torch.dtype) -> "Sizes":
        least = max(FEWEST, next_power_of_2(group))
        if dtype.itemsize > 2:
            return cls(FEWEST, least)
        return cls(2 * FEWEST, max(least, 64 if head_dim <= WIDE else 32))


@dataclass(frozen=True, slots=True)
class Decodes:
    """Decodes of a step, for layers of one window size."""

    work: Tensor  # [splits, 4]: row on the token axis, first block in the table, position, number of the split
    entries: Tensor  # [decodes + 1], index of each decode's first split in `work`, and the number of splits
    found: "Found"
    programs: int  # that loop over the splits

    def __len__(self) -> int:
        return len(self.entries) - 1


class Found(NamedTuple):
    """Partial softmax of each split."""

    best: Tensor  # [splits, heads], maximum exponent
    total: Tensor  # [splits, heads], sum of the weights
    mixed: Tensor  # [splits, heads, head_dim], weighted sum of the values


@dataclass(frozen=True, slots=True)
class Plan:
    table: Tensor  # block tables of all spans, one after the other
    decodes: dict[int, Decodes]  # by window size; empty if there are none
    tiles: Tensor  # [tiles, 4]: first row on the token axis, first block in the table, first position, tokens
    constants: dict[int, dict[str, int]]  # constant arguments of the kernels, by window size
    covers_all: bool  # whether every token is in a span


class TritonAttention:
    """Attention backend that reads the paged cache by Triton kernels; its decode steps can be captured."""

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
        """Return plans for up to `rows` decodes of sequences of up to `length` tokens."""
        return Frames(self, self._variant.kinds, rows, length, cache)

    @property
    def split_bytes(self) -> int:
        """Size of one split's `mixed`, which is nearly all of its result."""
        return 4 * self._heads * self._head_dim

    def numbers(self, decodes: list[Span], chunks: list[Span], cache: Cache) -> list[list[int]]:
        """Return a plan's integers: the table, the tiles, and for each window size `entries` and `work` of Decodes."""
        tables = [span.blocks[:-(-span.end // cache.block_size)] for span in [*decodes, *chunks]]
        firsts = list(accumulate(map(len, tables), initial=0))
        tiles = [entry for first, chunk in zip(firsts[len(decodes):], chunks, strict=False)
                 for entry in tiles_of(chunk, first, self._sizes(cache).rows // self._group)]
        return [list(chain(*tables)), tiles, *self.works(decodes, firsts, cache)]

    def works(self, decodes: list[Span], firsts: Sequence[int], cache: Cache) -> list[list[int]]:
        """Return `entries` and `work` of Decodes for each window size.

        `firsts`: index in the table of each decode's first block.
        """
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
        """Return the constant arguments of the kernels by window size."""
        return {window: self._constants(window, self._sizes(cache), cache) for window in self._variant.kinds}

    def _sizes(self, cache: Cache) -> Sizes:
        return Sizes.of(self._group, self._head_dim, cache.dtype)

    def run(self, queries: Tensor, cache: Cache, layer: int, plan: Plan) -> Tensor:
        """`queries` is [tokens, heads, head_dim], where the stride of tokens may be larger than a token's queries; the
        result is [tokens, heads * head_dim]."""
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
    """Plans of decode steps whose tensors keep their addresses, so that a captured step can be replayed.

    All plans share these tensors, so only one is used at a time.
    """

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
        """Return the plan of a step of `rows` tokens, the first ones on the token axis, all of them in spans."""
        standing = self._standing.lists
        programs = min(self._splits, max(rows, PROGRAMS // self._attention.num_kv_heads))
        there = {window: Decodes(work.view(-1, ENTRY), entries[:rows + 1], self._found, programs)
                 for window, entries, work in zip(self._windows, standing[::2], standing[1::2], strict=True)}
        constants = self._attention.constants(self._cache)
        return Plan(self._tables.there, there, self._no_tiles, constants, covers_all=True)

    def write(self, decodes: list[Span]) -> bool:
        """Write the spans of the next step, as many as its plan has rows. Return False if they do not fit."""
        tables = [(span.blocks, -(-span.end // self._cache.block_size)) for span in decodes]
        firsts = range(0, len(decodes) * self._tables.width, self._tables.width)
        works = self._attention.works(decodes, firsts, self._cache)
        if any(length > self._tables.width for _, length in tables) or not self._standing.holds(works):
            return False
        self._tables.write(tables)
        self._standing.send(works)
        return True


def work_of(span: Span, first: int, window: int, tile: int) -> list[int]:
    """Return the entries of the splits that a decode attends to. `first`: index in the table of its first block."""
    begin = max(0, span.end - window) // tile * tile if window else 0
    splits = range(begin // SPLIT, -(-span.end // SPLIT))
    work = [span.row, first, span.start, 0] * len(splits)
    work[3::ENTRY] = splits
    return work


def tiles_of(chunk: Span, first: int, each: int) -> Iterator[int]:
    """Yield the entries of a chunk's tiles of `each` tokens. `first`: index in the table of its first block."""
    for start in range(0, chunk.length, each):
        yield from (chunk.row + start, first, chunk.start + start, min(each, chunk.length - start))


def padded(head_dim: int) -> int:
    """Return the width to which head_dim is padded for tl.dot."""
    width: int = next_power_of_2(head_dim)
    return max(FEWEST, width)
