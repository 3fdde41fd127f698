"""Attention on CPU by torch's scaled_dot_product_attention, exact by docs/exactness.md, "Tiles of 16 rows" and
"Gathered lengths".

Decodes of one gathered length share a call, each with tiles of its own. A chunk is cut into pieces of one gathered
length; the heads of its tokens, token after token, fill its tiles. Under a sliding window the gathered keys begin at a
multiple of 512.
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

from shard.attention.config import AttentionConfig
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
    """Range of positions that is gathered for a span under a sliding window."""

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

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, attention_config: AttentionConfig) -> None:
        self._head_shape = (num_kv_heads, num_heads // num_kv_heads, head_dim)
        self._config = attention_config
        self._attention_function = partial(scaled_dot_product_attention, scale=attention_config.scale)
        if attention_config.softcap:
            self._attention_function = partial(softcapped_attention,
                                               scale=attention_config.compute_score_scale(head_dim),
                                               softcap=attention_config.softcap)
        self._gather_buffer = torch.empty(0)  # buffer for gathered keys and values; kept, since allocating is slow

    def plan(self, decodes: list[TokenSpan], chunks: list[TokenSpan], num_tokens: int,
             cache: KVCache) -> list[CpuAttentionPlan]:
        """Return the plan of every layer; layers of one window size share theirs."""
        if self._head_shape[1] > TILE_ROWS:  # one token's heads need several tiles, so a decode is handled as a chunk
            decodes, chunks = [], decodes + chunks
        windows = self._config.sliding_windows or [0] * len(cache.keys)
        plans = {window: self._plan_window(GatherWindow(window), decodes, chunks, num_tokens, cache)
                 for window in sorted(set(windows))}
        return [plans[window] for window in windows]

    def _plan_window(self, gather_window: GatherWindow, decodes: list[TokenSpan], chunks: list[TokenSpan],
                     num_tokens: int, cache: KVCache) -> CpuAttentionPlan:
        sorted_decodes = sorted(decodes, key=gather_window.gather_length)
        max_positions = MAX_GATHERED_BYTES * torch.get_num_threads() // cache.slot_bytes_per_layer
        batches = list(batch_decodes(sorted_decodes, gather_window, max_positions))
        chunk_pieces = [list(split_chunk_into_pieces(chunk)) for chunk in chunks]
        num_gathered = max([*(len(batch) * gather_window.gather_length(batch[0]) for batch in batches),
                            *(gather_length_of_chunk(some, gather_window) for some in chunk_pieces)])
        if self._gather_buffer.numel() < num_gathered * cache.slot_width or self._gather_buffer.dtype != cache.dtype:
            self._gather_buffer = torch.empty(num_gathered * cache.slot_width, dtype=cache.dtype)
        planner = CpuAttentionPlanner(self._head_shape, cache, self._gather_buffer, gather_window, decodes + chunks,
                                      num_tokens=num_tokens)
        gatherings = [planner.plan_decodes(spans, slice(end - len(spans), end))  # batches follow each other
                      for spans, end in zip(batches, accumulate(map(len, batches)), strict=True)]
        if chunk_pieces:
            gatherings += planner.plan_chunks(chunk_pieces)
        if sorted_decodes == decodes:
            return CpuAttentionPlan(gatherings, planner.output, None, None)
        sort_order = [span.first_row for span in sorted_decodes] + list(range(len(sorted_decodes), num_tokens))
        inverse_order = sorted(range(num_tokens), key=sort_order.__getitem__)
        return CpuAttentionPlan(gatherings, planner.output, make_int64_tensor(sort_order),
                                make_int64_tensor(inverse_order))

    def run(self, queries: Tensor, cache: KVCache, layer: int, plan: list[CpuAttentionPlan]) -> Tensor:
        """`queries` is [tokens, heads, head_dim], the result [tokens, heads * head_dim]."""
        layer_plan = plan[layer]
        gatherings, output, order, back = (layer_plan.gathers, layer_plan.output, layer_plan.sort_order,
                                           layer_plan.inverse_order)
        if order is not None:
            queries = queries.index_select(0, order)
        queries = queries.view(-1, *self._head_shape)  # [tokens, kv_heads, group, head_dim]
        for units, target, calls in gatherings:
            torch.index_select(cache.gather_units[layer], 0, units, out=target)
            for tokens, tiles, rows, keys, values, mask, result in calls:
                rows.copy_(queries[tokens])
                attended = self._attention_function(tiles, keys, values, mask).contiguous()
                result.copy_(attended.as_strided(rows.shape, rows.stride()))  # results have the layout of `query_tiles`
        return output if back is None else output.index_select(0, back)


def softcapped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float,
                         softcap: float) -> Tensor:
    """Attend with scores soft-capped at `softcap`, computed in float32. Shapes are those of `SdpaCall`."""
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
        self._causal_mask = CausalMask(max(span.end - gather_window.first_position(span) for span in spans),
                                       gather_window.window)
        self._tiles_by_num_tokens: dict[int, Tensor] = {}  # by the piece's number of tokens
        self.output = torch.zeros(num_tokens, prod(head_shape), dtype=cache.dtype)
        self._output_by_head = self.output.view(num_tokens, *head_shape)

    def plan_decodes(self, spans: list[TokenSpan], token_slice: slice) -> KVGather:
        """Plan decodes that share a call, at `token_slice` of the token axis."""
        kv_heads, group, head_dim = self._head_shape
        length = self._gather_window.gather_length(spans[0])
        target, keys, values = self._view_gather_buffer(len(spans), length)
        tiles = torch.zeros(len(spans), kv_heads, TILE_ROWS, head_dim, dtype=self._cache.dtype)
        gathered_positions = [span.start - self._gather_window.first_position(span) for span in spans]
        mask = self._causal_mask.select_rows(gathered_positions, length)[:, None, None]  # [spans, 1, 1, length]
        call = SdpaCall(token_slice, tiles, tiles[:, :, :group], keys, values, mask, self._output_by_head[token_slice])
        return KVGather(
            self._list_unit_indices([(span, self._gather_window.first_position(span)) for span in spans], length),
            target, [call])

    def plan_chunks(self, chunk_pieces: list[list[TokenSpan]]) -> list[KVGather]:
        """Plan chunks, each given as its pieces."""
        pieces = [piece for some in chunk_pieces for piece in some]
        chunk_masks = ChunkMasks(self._causal_mask,
                                 [(piece, self._gather_window.first_position(piece)) for piece in pieces],
                                 self._head_shape[1])
        return [self._plan_chunk(some, chunk_masks) for some in chunk_pieces]

    def _plan_chunk(self, pieces: list[TokenSpan], chunk_masks: "ChunkMasks") -> KVGather:
        length, first = (gather_length_of_chunk(pieces, self._gather_window),
                         self._gather_window.first_position(pieces[0]))
        target, keys, values = self._view_gather_buffer(1, length)
        calls = [self._plan_piece(piece, first, keys[0], values[0], chunk_masks) for piece in pieces]
        return KVGather(self._list_unit_indices([(pieces[-1], first)], length), target, calls)

    def _plan_piece(self, piece: TokenSpan, first_position: int, keys: Tensor, values: Tensor,
                    chunk_masks: "ChunkMasks") -> SdpaCall:
        """Plan one piece. `keys`, `values`: the chunk's from position `first_position` on, [kv_heads, positions,
        head_dim]."""
        kv_heads, group, head_dim = self._head_shape
        tiles = self._get_query_tiles(piece.length)
        rows = tiles.view(kv_heads, -1, head_dim)[:, :piece.length * group]  # [kv_heads, tokens * group, head_dim]
        rows = rows.view(kv_heads, piece.length, group, head_dim).transpose(0, 1)
        begin, length = self._gather_window.first_position(piece), self._gather_window.gather_length(piece)
        seen = slice(begin - first_position, begin - first_position + length)
        keys, values = (some[:, None, seen].expand(kv_heads, tiles.shape[1], length, head_dim)
                        for some in (keys, values))
        tokens = slice(piece.first_row, piece.first_row + piece.length)
        mask = chunk_masks.piece_mask(piece.start - begin, tiles.shape[1], length)
        return SdpaCall(tokens, tiles, rows, keys, values, mask, self._output_by_head[tokens])

    def _get_query_tiles(self, num_tokens: int) -> Tensor:
        """Return the tiles of a piece, [kv_heads, tiles, 16, head_dim].

        Pieces with equally many tokens share one tensor, since their calls run one after the other.
        """
        kv_heads, group, head_dim = self._head_shape
        if num_tokens not in self._tiles_by_num_tokens:
            size = (kv_heads, count_tiles(num_tokens * group), TILE_ROWS, head_dim)
            self._tiles_by_num_tokens[num_tokens] = torch.zeros(size, dtype=self._cache.dtype)
        return self._tiles_by_num_tokens[num_tokens]

    def _list_unit_indices(self, spans_with_first: list[tuple[TokenSpan, int]], length: int) -> Tensor:
        """Return the cache units of each span from its first position on, padded to `length` positions."""
        return make_int64_tensor([unit for span, first in spans_with_first
                                  for unit in self._cache.list_gather_units(span.blocks, first, span.end, length)])

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
        return windows.index_select(0, make_int64_tensor([self._max_positions - 1 - place for place in positions]))


class ChunkMasks:
    """Masks of all pieces, as slices of one matrix, since all have the same diagonal.

        0 0 0 0 0 - - -      first token of the piece that starts latest; an earlier piece uses columns to the right
        0 0 0 0 0 0 - -      the next token
    """

    def __init__(self, causal_mask: CausalMask, pieces: list[tuple[TokenSpan, int]], group: int) -> None:
        """`pieces`: each with the first position gathered for it; `group`: query heads per KV head."""
        self._latest_start = max(piece.start - first for piece, first in pieces)
        num_rows = max(count_tiles(piece.length * group) for piece, _ in pieces) * TILE_ROWS
        places = [self._latest_start + row // group for row in range(num_rows)]
        self._mask_matrix = causal_mask.select_rows(places, self._latest_start + LONG_GATHER_MULTIPLE)

    def piece_mask(self, start: int, tile_count: int, length: int) -> Tensor:
        """Return the mask [1, tiles, 16, length] of a piece that starts at `start`."""
        left = self._latest_start - start
        return self._mask_matrix[:tile_count * TILE_ROWS, left:left + length].view(1, tile_count, TILE_ROWS, length)


def count_tiles(num_rows: int) -> int:
    return -(-num_rows // TILE_ROWS)


def batch_decodes(sorted_decodes: list[TokenSpan], gather_window: GatherWindow,
                  max_positions: int) -> Iterator[list[TokenSpan]]:
    """Yield decodes that share a call: of one gathered length, and with at most `max_positions` positions together.

    A decode that is longer by itself has a call of its own.
    """
    for length, same in groupby(sorted_decodes, gather_window.gather_length):
        spans, max_decodes = list(same), max(1, max_positions // length)
        yield from (spans[first:first + max_decodes] for first in range(0, len(spans), max_decodes))


def gather_length_of_chunk(pieces: list[TokenSpan], gather_window: GatherWindow) -> int:
    """Return how many positions are gathered for all pieces of a chunk together."""
    return (max(gather_window.first_position(piece) + gather_window.gather_length(piece) for piece in pieces)
            - gather_window.first_position(pieces[0]))


def split_chunk_into_pieces(chunk: TokenSpan) -> Iterator[TokenSpan]:
    """Cut a chunk into pieces at multiples of PIECE_POSITIONS, where gathered lengths may change."""
    start = chunk.start
    while start < chunk.end:
        end = min(chunk.end, (start // PIECE_POSITIONS + 1) * PIECE_POSITIONS)
        yield TokenSpan(chunk.first_row + start - chunk.start, start, end - start, chunk.blocks)
        start = end
