"""Attention on CPU by torch's scaled_dot_product_attention, exact by docs/concepts/exactness.md, "Tiles of 16 rows" and
"Gathered lengths".

Decodes of one gathered length share a call, each with tiles of its own. A chunk is cut into pieces of one gathered
length; the heads of its tokens, token after token, fill its tiles. Under a sliding window the gathered keys begin at a
multiple of 512.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shard.attention.backend import AttentionOptions
from shard.attention.kv_cache import GATHER_UNIT_SLOTS, KVCache, make_int64_tensor
from shard.state.step import TokenSpan

TILE_ROWS = 16
PIECE_POSITIONS = 64  # positions; gathered lengths change only at multiples of it
LONG_GATHER_MULTIPLE = 512  # gathered lengths above LONG_GATHER_MULTIPLE // 2 are multiples of it
# for several decodes in one call, per thread: gathered data should still be in the CPU's cache
MAX_GATHERED_BYTES = 2**21


def round_up_gather_length(num_positions: int) -> int:
    """Return how many positions are gathered for a row that attends to `num_positions`."""
    if num_positions > LONG_GATHER_MULTIPLE // 2:
        return -(-num_positions // LONG_GATHER_MULTIPLE) * LONG_GATHER_MULTIPLE
    return max(PIECE_POSITIONS, 1 << (num_positions - 1).bit_length())


@dataclass(frozen=True, slots=True)
class GatherWindow:
    """Sliding window of a layer, by which the range of positions is found that is gathered for a span."""

    window: int  # positions that a token attends to; 0: all

    def first_position(self, span: TokenSpan) -> int:
        """Return the first position gathered. It is the same for all tokens of a piece."""
        if not self.window:
            return 0
        return (max(0, span.start // PIECE_POSITIONS * PIECE_POSITIONS - self.window + 1)
                // LONG_GATHER_MULTIPLE * LONG_GATHER_MULTIPLE)

    def gather_length(self, span: TokenSpan) -> int:
        return round_up_gather_length(span.end - self.first_position(span))


class SdpaCall(NamedTuple):
    """One call of the kernel. The first two axes of its arguments are decodes and kv_heads, or kv_heads and tiles."""

    token_slice: slice  # on the token axis
    query_tiles: Tensor  # [.., .., 16, head_dim], zeros outside `query_rows`
    query_rows: Tensor  # [tokens, kv_heads, group, head_dim], view of `query_tiles` to which the queries are copied
    keys: Tensor  # [.., .., length, head_dim]
    values: Tensor  # [.., .., length, head_dim]
    mask: Tensor  # [.., .., 16 or 1, length], added to the scores
    output_rows: Tensor  # [tokens, kv_heads, group, head_dim], view of the output


class KVGather(NamedTuple):
    """Copy of units from the cache, and the kernel calls that read it."""

    unit_indices: Tensor  # [units]
    buffer: Tensor  # [units, 16 * 2 * kv_heads * head_dim]
    calls: list[SdpaCall]


@dataclass(frozen=True, slots=True)
class CpuAttentionPlan:
    """Gathers from the cache and kernel calls of one step, for layers of one window size."""

    gathers: list[KVGather]
    output: Tensor  # [tokens, heads * head_dim]
    sort_order: Tensor | None  # [tokens], sorts decodes by gathered length; None if they are sorted already
    inverse_order: Tensor | None  # [tokens], inverse of `sort_order`


class CpuAttention:
    """Attention backend on CPU by torch's scaled_dot_product_attention."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, attention_options: AttentionOptions) -> None:
        self._head_shape = (num_kv_heads, num_heads // num_kv_heads, head_dim)
        self._options = attention_options
        self._attention_function = partial(scaled_dot_product_attention, scale=attention_options.scale)
        if attention_options.softcap:
            self._attention_function = partial(softcapped_attention,
                                               scale=attention_options.compute_score_scale(head_dim),
                                               softcap=attention_options.softcap)
        self._gather_buffer = torch.empty(0)  # buffer for gathered keys and values; kept, since allocating is slow

    def plan(self, decodes: list[TokenSpan], chunks: list[TokenSpan], num_tokens: int,
             cache: KVCache) -> list[CpuAttentionPlan]:
        """Return the plan of every layer; layers of one window size share theirs."""
        if self._head_shape[1] > TILE_ROWS:  # one token's heads need several tiles, so a decode is handled as a chunk
            decodes, chunks = [], decodes + chunks
        windows = self._options.sliding_windows or [0] * len(cache.keys)
        plans: dict[int, CpuAttentionPlan] = {}
        for window in sorted(set(windows)):
            plans[window] = self._plan_for_window(GatherWindow(window), decodes, chunks, num_tokens, cache)
        return list(map(plans.__getitem__, windows))

    def _plan_for_window(self, gather_window: GatherWindow, decodes: list[TokenSpan],
                         chunks: list[TokenSpan], num_tokens: int, cache: KVCache) -> CpuAttentionPlan:
        sorted_decodes = sorted(decodes, key=gather_window.gather_length)
        max_positions = MAX_GATHERED_BYTES * torch.get_num_threads() // cache.slot_bytes_per_layer
        batches = list(batch_decodes(sorted_decodes, gather_window, max_positions))
        chunk_pieces = list(map(split_chunk_into_pieces, chunks))
        num_gathered = 0
        for batch in batches:
            num_gathered = max(num_gathered, len(batch) * gather_window.gather_length(batch[0]))
        for pieces in chunk_pieces:
            num_gathered = max(num_gathered, gather_length_of_chunk(pieces, gather_window))
        if self._gather_buffer.numel() < num_gathered * cache.slot_width or self._gather_buffer.dtype != cache.dtype:
            self._gather_buffer = torch.empty(num_gathered * cache.slot_width, dtype=cache.dtype)
        planner = CpuAttentionPlanner(self._head_shape, cache, self._gather_buffer, gather_window, decodes + chunks,
                                      num_tokens=num_tokens)
        gatherings: list[KVGather] = []
        first = 0
        for batch in batches:  # they follow each other on the token axis
            gatherings.append(planner.plan_decodes(batch, slice(first, first + len(batch))))
            first += len(batch)
        if chunk_pieces:
            gatherings += planner.plan_chunks(chunk_pieces)
        if sorted_decodes == decodes:
            return CpuAttentionPlan(gatherings, planner.output, None, None)
        sort_order = [span.first_row for span in sorted_decodes] + list(range(len(sorted_decodes), num_tokens))
        inverse_order = sorted(range(num_tokens), key=sort_order.__getitem__)
        return CpuAttentionPlan(gatherings, planner.output, make_int64_tensor(sort_order),
                                make_int64_tensor(inverse_order))

    def run(self, queries: Tensor, cache: KVCache, layer: int, plan: list[CpuAttentionPlan]) -> Tensor:
        layer_plan = plan[layer]
        if layer_plan.sort_order is not None:
            queries = queries.index_select(0, layer_plan.sort_order)
        queries = queries.view(-1, *self._head_shape)  # [tokens, kv_heads, group, head_dim]
        for units, target, calls in layer_plan.gathers:
            torch.index_select(cache.gather_units[layer], 0, units, out=target)
            for tokens, tiles, rows, keys, values, mask, result in calls:
                rows.copy_(queries[tokens])
                attended = self._attention_function(tiles, keys, values, mask).contiguous()
                result.copy_(attended.as_strided(rows.shape, rows.stride()))  # results have the layout of `query_tiles`
        if layer_plan.inverse_order is None:
            return layer_plan.output
        return layer_plan.output.index_select(0, layer_plan.inverse_order)


def softcapped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float,
                         softcap: float) -> Tensor:
    """Attend with scores soft-capped at `softcap`, computed in float32. Shapes are those of `SdpaCall`. A single tile
    is computed as two: torch multiplies a single matrix by another function, whose results may have other bits."""
    if queries.shape[0] * queries.shape[1] == 1:
        queries = queries.expand(2, -1, -1, -1)
        return softcapped_attention(queries, keys.expand(2, -1, -1, -1), values.expand(2, -1, -1, -1), mask,
                                    scale=scale, softcap=softcap)[:1]
    scores = torch.matmul(queries.float(), keys.float().mT).mul_(scale / softcap).tanh_().mul_(softcap)
    return torch.matmul((scores + mask).softmax(-1), values.float()).to(queries.dtype)


class CpuAttentionPlanner:
    """Builder of one step's plan for layers of one window size."""

    def __init__(self, head_shape: tuple[int, int, int], cache: KVCache, gather_buffer: Tensor,
                 gather_window: GatherWindow, spans: list[TokenSpan], *, num_tokens: int) -> None:
        self._head_shape = head_shape
        self._cache = cache
        self._gather_buffer = gather_buffer
        self._gather_window = gather_window
        self._causal_mask = CausalMask(max(map(gather_window.gather_length, spans)), gather_window.window)
        self._tiles_by_num_tokens: dict[int, Tensor] = {}  # by the piece's number of tokens
        self.output = torch.zeros(num_tokens, prod(head_shape), dtype=cache.dtype)
        self._output_by_head = self.output.view(num_tokens, *head_shape)

    def plan_decodes(self, spans: list[TokenSpan], token_slice: slice) -> KVGather:
        """Plan decodes that share a call, at `token_slice` of the token axis."""
        kv_heads, group, head_dim = self._head_shape
        length = self._gather_window.gather_length(spans[0])
        target, keys, values = self._view_gather_buffer(len(spans), length)
        tiles = torch.zeros(len(spans), kv_heads, TILE_ROWS, head_dim, dtype=self._cache.dtype)
        units: list[int] = []
        positions: list[int] = []  # counted from the first that is gathered
        for span in spans:
            first_position = self._gather_window.first_position(span)
            units += self._cache.list_gather_units(span.blocks, first_position, span.end, length)
            positions.append(span.start - first_position)
        mask = self._causal_mask.select_rows(positions, length)[:, None, None]  # [spans, 1, 1, length]
        call = SdpaCall(token_slice, tiles, tiles[:, :, :group], keys, values, mask, self._output_by_head[token_slice])
        return KVGather(make_int64_tensor(units), target, [call])

    def plan_chunks(self, chunk_pieces: list[list[TokenSpan]]) -> list[KVGather]:
        """Plan chunks, each given as its pieces. Their masks are slices of one matrix, since all have the same
        diagonal.

            0 0 0 0 0 - - -      first token of the piece that starts latest; an earlier piece uses columns to the right
            0 0 0 0 0 0 - -      the next token
        """
        first_position, group = self._gather_window.first_position, self._head_shape[1]
        latest_start = max(piece.start - first_position(piece) for piece in chain(*chunk_pieces))
        num_rows = max(count_tiles(piece.length * group) for piece in chain(*chunk_pieces)) * TILE_ROWS
        masks = self._causal_mask.select_rows([latest_start + row // group for row in range(num_rows)],
                                              latest_start + LONG_GATHER_MULTIPLE)
        gatherings: list[KVGather] = []
        for pieces in chunk_pieces:
            length, first, last = gather_length_of_chunk(pieces, self._gather_window), pieces[0], pieces[-1]
            target, keys, values = self._view_gather_buffer(1, length)
            calls = [self._plan_piece(piece, first_position(first), keys[0], values[0], masks) for piece in pieces]
            units = self._cache.list_gather_units(last.blocks, first_position(first), last.end, length)
            gatherings.append(KVGather(make_int64_tensor(units), target, calls))
        return gatherings

    def _plan_piece(self, piece: TokenSpan, first_position: int, keys: Tensor, values: Tensor,
                    masks: Tensor) -> SdpaCall:
        """Plan one piece. `keys`, `values`: the chunk's from position `first_position` on, [kv_heads, positions,
        head_dim]. `masks`: those of the piece that starts latest, LONG_GATHER_MULTIPLE wider than it needs."""
        kv_heads, group, head_dim = self._head_shape
        num_tiles = count_tiles(piece.length * group)
        if piece.length not in self._tiles_by_num_tokens:  # one tensor for all, since their calls run one by one
            self._tiles_by_num_tokens[piece.length] = torch.zeros(kv_heads, num_tiles, TILE_ROWS, head_dim,
                                                                  dtype=self._cache.dtype)
        tiles = self._tiles_by_num_tokens[piece.length]
        rows = tiles.view(kv_heads, -1, head_dim)[:, :piece.length * group]  # [kv_heads, tokens * group, head_dim]
        rows = rows.view(kv_heads, piece.length, group, head_dim).transpose(0, 1)
        begin, length = self._gather_window.first_position(piece), self._gather_window.gather_length(piece)
        seen = slice(begin - first_position, begin - first_position + length)
        keys, values = (some[:, None, seen].expand(kv_heads, num_tiles, length, head_dim)
                        for some in (keys, values))
        tokens = slice(piece.first_row, piece.first_row + piece.length)
        left = masks.shape[1] - LONG_GATHER_MULTIPLE - (piece.start - begin)
        mask = masks[:num_tiles * TILE_ROWS, left:left + length].view(1, num_tiles, TILE_ROWS, length)
        return SdpaCall(tokens, tiles, rows, keys, values, mask, self._output_by_head[tokens])

    def _view_gather_buffer(self, num_gathers: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the buffer to copy units to, [units, ..], and its keys and its values as views, each [count,
        kv_heads, length, head_dim]."""
        kv_heads, _, head_dim = self._head_shape
        memory = self._gather_buffer[:num_gathers * length * self._cache.slot_width]
        keys, values = memory.view(num_gathers, length, 2, kv_heads, head_dim).permute(2, 0, 3, 1, 4)
        return memory.view(-1, GATHER_UNIT_SLOTS * self._cache.slot_width), keys, values


class CausalMask:
    """Mask rows, which are zero at positions that a token attends to and minus infinity elsewhere.

    All rows are slices of one vector. Positions count from the first that is gathered.
    """

    def __init__(self, end_position: int, window: int) -> None:
        """Cover positions before `end_position`, and the higher ones of rows that pad a piece's last tile."""
        self._max_positions = end_position + PIECE_POSITIONS + TILE_ROWS
        self._mask_values = torch.zeros(self._max_positions + LONG_GATHER_MULTIPLE)
        self._mask_values[self._max_positions:] = -torch.inf
        if window:
            self._mask_values[:max(0, self._max_positions - window)] = -torch.inf

    def select_rows(self, positions: list[int], length: int) -> Tensor:
        """Return the mask rows of tokens at `positions`, [positions, length]; `length` exceeds no position by more than
        512."""
        windows = self._mask_values.unfold(0, length, 1)
        return windows.index_select(0, self._max_positions - 1 - make_int64_tensor(positions))


def count_tiles(num_rows: int) -> int:
    return -(-num_rows // TILE_ROWS)


def batch_decodes(sorted_decodes: list[TokenSpan], gather_window: GatherWindow,
                  max_positions: int) -> Iterator[list[TokenSpan]]:
    """Yield decodes that share a call: of one gathered length, and with at most `max_positions` positions together.

    A decode that is longer by itself has a call of its own.
    """
    for length, same in groupby(sorted_decodes, gather_window.gather_length):
        spans, max_decodes = list(same), max(1, max_positions // length)
        for first in range(0, len(spans), max_decodes):
            yield spans[first:first + max_decodes]


def gather_length_of_chunk(pieces: list[TokenSpan], gather_window: GatherWindow) -> int:
    """Return how many positions are gathered for all pieces of a chunk together."""
    return (max(gather_window.first_position(piece) + gather_window.gather_length(piece) for piece in pieces)
            - gather_window.first_position(pieces[0]))


def split_chunk_into_pieces(chunk: TokenSpan) -> list[TokenSpan]:
    """Cut a chunk into pieces at multiples of PIECE_POSITIONS, where gathered lengths may change."""
    start, pieces = chunk.start, list[TokenSpan]()
    while start < chunk.end:
        end = min(chunk.end, (start // PIECE_POSITIONS + 1) * PIECE_POSITIONS)
        pieces.append(TokenSpan(chunk.first_row + start - chunk.start, start, end - start, chunk.blocks))
        start = end
    return pieces
