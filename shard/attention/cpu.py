"""Attention on CPU by torch's scaled_dot_product_attention. A token's bits depend only on its sequence.

The kernel gives a row the same bits whenever the shape of the call is the same. So the shape follows from the row's
position alone: queries are packed in tiles of exactly 16 rows, and keys are gathered to a length that the position
determines. Decodes of one gathered length share a call, each with tiles of its own. A chunk is cut into pieces of one
gathered length; the heads of its tokens, token after token, fill its tiles. Other rows of a tile or a call do not
change a row's bits.

Under a sliding window the gathered keys begin at a multiple of 512, which the position determines as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shard.attention.kv_cache import UNIT, Cache
from shard.attention.span import Span, integers
from shard.attention.variant import Variant

TILE = 16
PIECE = 64  # positions; gathered lengths change only at multiples of it
LONG = 512  # gathered lengths above LONG // 2 are multiples of it
GATHERED_BYTES = 2**21  # for several decodes in one call, per thread: gathered data should still be in the CPU's cache


def gathered_length(num_places: int) -> int:
    """Return how many positions are gathered for a row that attends to `num_places`."""
    if num_places > LONG // 2:
        return -(-num_places // LONG) * LONG
    return max(PIECE, 1 << (num_places - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Reach:
    """Range of positions that is gathered for a span under a sliding window."""

    window: int  # positions that a token attends to; 0: all

    def first(self, span: Span) -> int:
        """Return the first position gathered. It is the same for all tokens of a piece."""
        if not self.window:
            return 0
        return max(0, span.start // PIECE * PIECE - self.window + 1) // LONG * LONG

    def length(self, span: Span) -> int:
        return gathered_length(span.end - self.first(span))


class Call(NamedTuple):
    """One call of the kernel. The first two axes of its arguments are decodes and kv_heads, or kv_heads and tiles."""

    tokens: slice  # on the token axis
    tiles: Tensor  # [.., .., 16, head_dim], zeros outside `rows`
    rows: Tensor  # [tokens, kv_heads, group, head_dim], view of `tiles` to which the queries are copied
    keys: Tensor  # [.., .., length, head_dim]
    values: Tensor  # [.., .., length, head_dim]
    mask: Tensor  # [.., .., 16 or 1, length], added to the scores
    result: Tensor  # [tokens, kv_heads, group, head_dim], view of the output


class Gathering(NamedTuple):
    """Copy of units from the cache, and the kernel calls that read it."""

    units: Tensor  # [units]
    target: Tensor  # [units, 16 * 2 * kv_heads * head_dim]
    calls: list[Call]


@dataclass(frozen=True, slots=True)
class Plan:
    gatherings: list[Gathering]
    output: Tensor  # [tokens, heads * head_dim]
    order: Tensor | None  # [tokens], sorts decodes by gathered length; None if they are sorted already
    back: Tensor | None  # [tokens], inverse of `order`


class CpuAttention:
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, variant: Variant) -> None:
        self._shape = (num_kv_heads, num_heads // num_kv_heads, head_dim)
        self._variant = variant
        self._attend = partial(scaled_dot_product_attention, scale=variant.scale)
        if variant.softcap:
            self._attend = partial(capped_attention, scale=variant.scaling(head_dim), softcap=variant.softcap)
        self._memory = torch.empty(0)  # buffer for gathered keys and values; kept, since allocating is slow

    def plan(self, decodes: list[Span], chunks: list[Span], num_tokens: int, cache: Cache) -> dict[int, Plan]:
        """Return the plans by window size."""
        if self._shape[1] > TILE:  # one token's heads need several tiles, so a decode is handled as a chunk
            decodes, chunks = [], decodes + chunks
        return {window: self._plan(Reach(window), decodes, chunks, num_tokens, cache) for window in self._variant.kinds}

    def _plan(self, reach: Reach, decodes: list[Span], chunks: list[Span], num_tokens: int, cache: Cache) -> Plan:
        ordered = sorted(decodes, key=reach.length)
        most_places = GATHERED_BYTES * torch.get_num_threads() // cache.bytes_per_slot
        batches = list(batched(ordered, reach, most_places))
        pieces = [list(cut(chunk)) for chunk in chunks]
        self._grow(max([*(len(batch) * reach.length(batch[0]) for batch in batches),
                        *(gathered_by(some, reach) for some in pieces)]), cache)
        planner = Planner(self._shape, cache, self._memory, reach, decodes + chunks,
                          num_tokens=num_tokens)
        gatherings = planner.plan_decodes(batches) + planner.plan_chunks(pieces)
        if ordered == decodes:
            return Plan(gatherings, planner.output, None, None)
        order = [span.row for span in ordered] + list(range(len(ordered), num_tokens))
        back = sorted(range(num_tokens), key=order.__getitem__)
        return Plan(gatherings, planner.output, integers(order), integers(back))

    def run(self, queries: Tensor, cache: Cache, layer: int, plan: dict[int, Plan]) -> Tensor:
        """`queries` is [tokens, heads, head_dim], the result [tokens, heads * head_dim]."""
        chosen = plan[self._variant.window(layer)]
        gatherings, output, order, back = chosen.gatherings, chosen.output, chosen.order, chosen.back
        if order is not None:
            queries = queries.index_select(0, order)
        queries = queries.view(-1, *self._shape)  # [tokens, kv_heads, group, head_dim]
        for units, target, calls in gatherings:
            torch.index_select(cache.units[layer], 0, units, out=target)
            for tokens, tiles, rows, keys, values, mask, result in calls:
                rows.copy_(queries[tokens])
                found = self._attend(tiles, keys, values, mask).contiguous()
                result.copy_(found.as_strided(rows.shape, rows.stride()))  # results have the layout of `tiles`
        return output if back is None else output.index_select(0, back)

    def _grow(self, num_places: int, cache: Cache) -> None:
        size = num_places * cache.width
        if self._memory.numel() < size or self._memory.dtype != cache.dtype:
            self._memory = torch.empty(size, dtype=cache.dtype)


def capped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float,
                     softcap: float) -> Tensor:
    """Attend with scores soft-capped at `softcap`, computed in float32. Shapes are those of `Call`."""
    scores = torch.matmul(queries.float(), keys.float().mT).mul_(scale / softcap).tanh_().mul_(softcap)
    return torch.matmul((scores + mask).softmax(-1), values.float()).to(queries.dtype)


class Planner:
    """Builder of one step's plan for layers of one window size."""

    def __init__(self, shape: tuple[int, int, int], cache: Cache, memory: Tensor, reach: Reach, spans: list[Span],
                 *, num_tokens: int) -> None:
        self._shape = shape
        self._cache = cache
        self._memory = memory
        self._reach = reach
        self._edge = Edge(max(span.end - reach.first(span) for span in spans), reach.window)
        self._tiles_of_piece: dict[int, Tensor] = {}  # by the piece's number of tokens
        self.output = torch.zeros(num_tokens, prod(shape), dtype=cache.dtype)
        self._results = self.output.view(num_tokens, *shape)

    def plan_decodes(self, batches: list[list[Span]]) -> list[Gathering]:
        """Plan batches of decodes, which follow each other on the token axis."""
        ends = list(accumulate(map(len, batches)))
        return [self._decode(spans, slice(end - len(spans), end)) for spans, end in zip(batches, ends, strict=True)]

    def _decode(self, spans: list[Span], tokens: slice) -> Gathering:
        kv_heads, group, head_dim = self._shape
        length = self._reach.length(spans[0])
        target, keys, values = self._gathered(len(spans), length)
        tiles = torch.zeros(len(spans), kv_heads, TILE, head_dim, dtype=self._cache.dtype)
        places = [span.start - self._reach.first(span) for span in spans]
        mask = self._edge.rows(places, length)[:, None, None]  # [spans, 1, 1, length]
        call = Call(tokens, tiles, tiles[:, :, :group], keys, values, mask, self._results[tokens])
        return Gathering(self._units([(span, self._reach.first(span)) for span in spans], length), target, [call])

    def plan_chunks(self, chunks: list[list[Span]]) -> list[Gathering]:
        """Plan chunks, each given as its pieces."""
        if not chunks:
            return []
        pieces = [piece for some in chunks for piece in some]
        slope = Slope(self._edge, [(piece, self._reach.first(piece)) for piece in pieces], self._shape[1])
        return [self._chunk(some, slope) for some in chunks]

    def _chunk(self, pieces: list[Span], slope: "Slope") -> Gathering:
        length, first = gathered_by(pieces, self._reach), self._reach.first(pieces[0])
        target, keys, values = self._gathered(1, length)
        calls = [self._piece(piece, first, keys[0], values[0], slope) for piece in pieces]
        return Gathering(self._units([(pieces[-1], first)], length), target, calls)

    def _piece(self, piece: Span, first: int, keys: Tensor, values: Tensor, slope: "Slope") -> Call:
        """Plan one piece. `keys`, `values`: the chunk's from position `first` on, [kv_heads, places, head_dim]."""
        kv_heads, group, head_dim = self._shape
        tiles = self._tiles(piece.length)
        rows = tiles.view(kv_heads, -1, head_dim)[:, :piece.length * group]  # [kv_heads, tokens * group, head_dim]
        rows = rows.view(kv_heads, piece.length, group, head_dim).transpose(0, 1)
        begin, length = self._reach.first(piece), self._reach.length(piece)
        seen = slice(begin - first, begin - first + length)
        keys, values = (some[:, None, seen].expand(kv_heads, tiles.shape[1], length, head_dim)
                        for some in (keys, values))
        tokens = slice(piece.row, piece.row + piece.length)
        mask = slope.mask(piece.start - begin, tiles.shape[1], length)
        return Call(tokens, tiles, rows, keys, values, mask, self._results[tokens])

    def _tiles(self, num_tokens: int) -> Tensor:
        """Return the tiles of a piece, [kv_heads, tiles, 16, head_dim].

        Pieces with equally many tokens share one tensor, since their calls run one after the other.
        """
        kv_heads, group, head_dim = self._shape
        if num_tokens not in self._tiles_of_piece:
            size = (kv_heads, num_tiles(num_tokens * group), TILE, head_dim)
            self._tiles_of_piece[num_tokens] = torch.zeros(size, dtype=self._cache.dtype)
        return self._tiles_of_piece[num_tokens]

    def _units(self, spans: list[tuple[Span, int]], length: int) -> Tensor:
        """Return the cache units of each span from its first position on, padded to `length` positions."""
        return integers([unit for span, first in spans
                         for unit in self._cache.units_of(span.blocks, first, span.end, length)])

    def _gathered(self, count: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the buffer to copy units to, [units, ..], and its keys and its values as views, each [count,
        kv_heads, length, head_dim]."""
        kv_heads, _, head_dim = self._shape
        memory = self._memory[:count * length * self._cache.width]
        keys, values = memory.view(count, length, 2, kv_heads, head_dim).permute(2, 0, 3, 1, 4)
        return memory.view(-1, UNIT * self._cache.width), keys, values


class Edge:
    """Mask rows, which are zero at positions that a token attends to and minus infinity elsewhere.

    All rows are slices of one vector. Positions count from the first that is gathered.
    """

    def __init__(self, end: int, window: int) -> None:
        """Cover positions before `end`, and the higher ones of rows that pad a piece's last tile."""
        self._height = end + PIECE + TILE
        self._values = torch.zeros(self._height + LONG)
        self._values[self._height:] = -torch.inf
        if window:
            self._values[:max(0, self._height - window)] = -torch.inf

    def rows(self, places: list[int], length: int) -> Tensor:
        """Return the mask rows of tokens at `places`, [places, length]; `length` exceeds no place by more than 512."""
        windows = self._values.unfold(0, length, 1)
        return windows.index_select(0, integers([self._height - 1 - place for place in places]))


class Slope:
    """Masks of all pieces, as slices of one matrix, since all have the same diagonal.

        0 0 0 0 0 - - -      first token of the piece that starts latest; an earlier piece uses columns to the right
        0 0 0 0 0 0 - -      the next token
    """

    def __init__(self, edge: Edge, pieces: list[tuple[Span, int]], group: int) -> None:
        """`pieces`: each with the first position gathered for it; `group`: query heads per KV head."""
        self._latest = max(piece.start - first for piece, first in pieces)
        num_rows = max(num_tiles(piece.length * group) for piece, _ in pieces) * TILE
        places = [self._latest + row // group for row in range(num_rows)]
        self._rows = edge.rows(places, self._latest + LONG)

    def mask(self, start: int, tiles: int, length: int) -> Tensor:
        """Return the mask [1, tiles, 16, length] of a piece that starts at `start`."""
        left = self._latest - start
        return self._rows[:tiles * TILE, left:left + length].view(1, tiles, TILE, length)


def num_tiles(num_rows: int) -> int:
    return -(-num_rows // TILE)


def batched(ordered: list[Span], reach: Reach, most_places: int) -> Iterator[list[Span]]:
    """Yield decodes that share a call: of one gathered length, and with at most `most_places` positions together.

    A decode that is longer by itself has a call of its own.
    """
    for length, same in groupby(ordered, reach.length):
        spans, most = list(same), max(1, most_places // length)
        yield from (spans[first:first + most] for first in range(0, len(spans), most))


def gathered_by(pieces: list[Span], reach: Reach) -> int:
    """Return how many positions are gathered for all pieces of a chunk together."""
    return max(reach.first(piece) + reach.length(piece) for piece in pieces) - reach.first(pieces[0])


def cut(chunk: Span) -> Iterator[Span]:
    """Cut a chunk into pieces at multiples of PIECE, where gathered lengths may change."""
    start = chunk.start
    while start < chunk.end:
        end = min(chunk.end, (start // PIECE + 1) * PIECE)
        yield Span(chunk.row + start - chunk.start, start, end - start, chunk.blocks)
        start = end
