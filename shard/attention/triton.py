"""Paged attention by the Triton kernels of `triton_kernels.py`.

A decode is cut into splits, so that long sequences use the whole device; the splits' results are stored and merged
(docs/concepts/exactness.md, "Fixed splits"). A chunk is cut into tiles of tokens. A plan's integers are copied to the
device in one piece, or, for captured steps, to the same addresses every time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from shard.attention.backend import AttentionOptions
from shard.attention.block_tables import DeviceBlockTables
from shard.attention.kv_cache import KVCache
from shard.attention.triton_kernels import attend_chunk_tiles, attend_decode_splits, merge_decode_splits
from shard.hardware.device_transfers import StaticDeviceBuffers, to_device_int32
from shard.state.step import TokenSpan

SPLIT_POSITIONS = 256  # positions
MIN_DOT_SIZE = 16  # smallest size of each axis of tl.dot
NARROW_HEAD_DIM, WIDE_HEAD_DIM = 64, 128  # bounds of head_dim where the sizes of tiles change
NUM_WARPS, NUM_STAGES = 4, 2
# target over all KV heads, where a launch does not know its number of splits; never fewer than decodes
TARGET_PROGRAMS = 1024
MAX_PARTIALS_BYTES = 2**28  # limit of the splits' results in captured steps, where the number of splits is not known
INTS_PER_ENTRY = 4  # integers per entry of `split_entries` and `chunk_tile_entries`


class KernelTileSizes(NamedTuple):
    """Sizes of a program's tiles."""

    tile_positions: int  # positions read at once
    query_rows: int  # query rows: heads of one or several tokens


class AttentionTileSizes(NamedTuple):
    """Tile sizes of the kernel for decodes and of that for chunks, for GPUs of compute capability 8.0 and above."""

    decodes: KernelTileSizes
    chunks: KernelTileSizes

    @classmethod
    def from_heads(cls, group: int, head_dim: int, dtype: torch.dtype, *, exact: bool) -> "AttentionTileSizes":
        """Return sizes that fit into the registers, and were fast on an H200 (docs/dev/gpu.md).

        With `exact`, both kernels have the same, and most rows of decodes are padding: docs/concepts/exactness.md,
        "Tiles of one size".
        """
        min_rows = max(MIN_DOT_SIZE, next_power_of_2(group))
        if dtype.itemsize > 2:
            return cls.of_one_size(MIN_DOT_SIZE, min_rows)
        if head_dim > WIDE_HEAD_DIM:
            return cls.of_one_size(32, max(min_rows, 32))
        is_narrow, rows = head_dim <= NARROW_HEAD_DIM, max(min_rows, 64)
        if exact or group > MIN_DOT_SIZE:
            return cls.of_one_size(64 if is_narrow else 32, rows)
        if is_narrow:
            return cls(KernelTileSizes(128, min_rows), KernelTileSizes(128, rows))
        return cls(KernelTileSizes(32, rows), KernelTileSizes(64, rows))

    @classmethod
    def of_one_size(cls, tile_positions: int, query_rows: int) -> "AttentionTileSizes":
        sizes = KernelTileSizes(tile_positions, query_rows)
        return cls(sizes, sizes)


@dataclass(frozen=True, slots=True)
class DecodeSplits:
    """Decodes of a step, for layers of one window size."""

    split_entries: Tensor  # [splits, 4]: row on the token axis, first block in the table, position, number of the split
    # [decodes + 1], index of each decode's first split in `split_entries`, and the number of splits
    split_offsets: Tensor
    partials: "SplitPartials"
    num_programs: int  # that loop over the splits

    @property
    def num_decodes(self) -> int:
        return len(self.split_offsets) - 1


class SplitPartials(NamedTuple):
    """Partial softmax of each split."""

    max_exponents: Tensor  # [splits, heads], maximum exponent
    weight_sums: Tensor  # [splits, heads], sum of the weights
    value_sums: Tensor  # [splits, heads, head_dim], weighted sum of the values


class KernelConstants(NamedTuple):
    """Constant arguments of the kernel for decodes and of that for chunks."""

    decodes: dict[str, int]
    chunks: dict[str, int]


@dataclass(frozen=True, slots=True)
class TritonAttentionPlan:
    """Device arguments of the attention kernels for one step."""

    block_tables: Tensor  # block tables of all spans, one after the other
    decodes_by_window: dict[int, DecodeSplits]  # by window size; empty if there are none
    # [tiles, 4]: first row on the token axis, first block in the table, first position, tokens
    chunk_tile_entries: Tensor
    kernel_constants: dict[int, KernelConstants]  # by window size
    covers_all_tokens: bool  # whether every token is in a span


class TritonAttention:
    """Attention backend that reads the paged cache by Triton kernels; its decode steps can be captured."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, attention_options: AttentionOptions) -> None:
        self._num_heads, self.num_kv_heads, self._head_dim = num_heads, num_kv_heads, head_dim
        self._group = num_heads // num_kv_heads
        self._options = attention_options
        self._scale = attention_options.compute_score_scale(head_dim)

    def plan(self, decodes: list[TokenSpan], chunks: list[TokenSpan], num_tokens: int,
             cache: KVCache) -> TritonAttentionPlan:
        tables = [span.blocks[:-(-span.end // cache.block_size)] for span in [*decodes, *chunks]]
        firsts = list(accumulate(map(len, tables), initial=0))
        tokens_per_tile = self._choose_tile_sizes(cache).chunks.query_rows // self._group
        tile_entries = [entry for first, chunk in zip(firsts[len(decodes):], chunks, strict=False)
                        for entry in iter_chunk_tile_entries(chunk, first, tokens_per_tile)]
        table, tiles, *rest = to_device_int32(
            [list(chain(*tables)), tile_entries, *self.list_decode_entries(decodes, firsts, cache)], cache.device)
        decodes_by_window: dict[int, DecodeSplits] = {}
        if decodes:
            for window, split_offsets, split_entries in zip(self._options.window_sizes, rest[::2], rest[1::2],
                                                            strict=True):
                splits = split_entries.view(-1, INTS_PER_ENTRY)
                decodes_by_window[window] = DecodeSplits(splits, split_offsets,
                                                         self.allocate_partials(len(splits), cache.device), len(splits))
        covers_all = sum(span.length for span in [*decodes, *chunks]) == num_tokens
        return TritonAttentionPlan(table, decodes_by_window, tiles.view(-1, INTS_PER_ENTRY),
                                   self.make_kernel_constants(cache), covers_all)

    def make_static_plans(self, max_rows: int, max_length: int, cache: KVCache) -> "TritonStaticPlans":
        return TritonStaticPlans(self, self._options.window_sizes, max_rows, max_length, cache)

    @property
    def bytes_per_split(self) -> int:
        """Size of one split's `value_sums`, which is nearly all of its result."""
        return 4 * self._num_heads * self._head_dim

    def list_decode_entries(self, decodes: list[TokenSpan], first_blocks: Sequence[int],
                            cache: KVCache) -> list[list[int]]:
        """Return `split_offsets` and `split_entries` of DecodeSplits for each window size.

        `first_blocks`: index in the table of each decode's first block.
        """
        tile, integer_lists = self._choose_tile_sizes(cache).decodes.tile_positions, list[list[int]]()
        for window in self._options.window_sizes:
            works = [list_split_entries(span, first, window, tile)
                     for span, first in zip(decodes, first_blocks, strict=False)]
            integer_lists += [list(accumulate((len(work) // INTS_PER_ENTRY for work in works), initial=0)),
                              list(chain(*works))]
        return integer_lists

    def allocate_partials(self, num_splits: int, device: torch.device) -> SplitPartials:
        each = (num_splits, self._num_heads)
        return SplitPartials(*(torch.empty(shape, dtype=torch.float32, device=device)
                               for shape in (each, each, (*each, self._head_dim))))

    def make_kernel_constants(self, cache: KVCache) -> dict[int, KernelConstants]:
        """Return the constant arguments of the kernels by window size."""
        common = {"CAPPED": bool(self._options.softcap), "GROUP": self._group, "HEAD_DIM": self._head_dim,
                  "HEAD_PAD": pad_head_dim(self._head_dim), "BLOCK_SIZE": cache.block_size, "SPLIT": SPLIT_POSITIONS,
                  "num_warps": NUM_WARPS, "num_stages": NUM_STAGES}
        decodes, chunks = (common | {"TILE": sizes.tile_positions, "ROWS": sizes.query_rows}
                           for sizes in self._choose_tile_sizes(cache))
        return {window: KernelConstants(decodes | {"WINDOW": window}, chunks | {"WINDOW": window})
                for window in self._options.window_sizes}

    def _choose_tile_sizes(self, cache: KVCache) -> AttentionTileSizes:
        return AttentionTileSizes.from_heads(self._group, self._head_dim, cache.dtype, exact=self._options.exact)

    def run(self, queries: Tensor, cache: KVCache, layer: int, plan: TritonAttentionPlan) -> Tensor:
        """`queries` is [tokens, heads, head_dim], where the stride of tokens may be larger than a token's queries; the
        result is [tokens, heads * head_dim]."""
        make = torch.empty if plan.covers_all_tokens else torch.zeros
        output = make(len(queries), self._num_heads * self._head_dim, dtype=queries.dtype, device=queries.device)
        input_tensors = queries, cache.keys[layer], cache.values[layer], plan.block_tables
        scalars = queries.stride(0), cache.slot_width, self._scale, self._options.softcap
        window = self._options.window_of_layer(layer)
        constants = plan.kernel_constants[window]
        if plan.decodes_by_window:
            decodes = plan.decodes_by_window[window]
            attend_decode_splits[decodes.num_programs, self.num_kv_heads](
                *input_tensors, decodes.split_entries, decodes.split_offsets, *decodes.partials, decodes.num_decodes,
                *scalars, **constants.decodes)
            merge_decode_splits[decodes.num_decodes, self._num_heads](
                *decodes.partials, output, decodes.split_offsets, HEAD_DIM=self._head_dim,
                HEAD_PAD=pad_head_dim(self._head_dim), num_warps=1)
        if len(plan.chunk_tile_entries):
            attend_chunk_tiles[len(plan.chunk_tile_entries), self.num_kv_heads](*input_tensors, plan.chunk_tile_entries,
                                                                                output, *scalars, **constants.chunks)
        return output


class TritonStaticPlans:
    """Implementation of `StaticPlans`. All plans share their tensors."""

    def __init__(self, attention: TritonAttention, windows: Sequence[int], max_rows: int, max_length: int,
                 cache: KVCache) -> None:
        self._attention, self._windows, self._cache = attention, windows, cache
        self._max_splits = max(max_rows, min(max_rows * -(-max_length // SPLIT_POSITIONS),
                                             MAX_PARTIALS_BYTES // attention.bytes_per_split))
        each = (max_rows + 1, INTS_PER_ENTRY * self._max_splits)
        self._static_buffers = StaticDeviceBuffers([*chain(*(each for _ in windows))], torch.int32, cache.device)
        self._block_tables = DeviceBlockTables(max_rows, -(-max_length // cache.block_size), cache.device)
        self._no_tiles = torch.empty(0, INTS_PER_ENTRY, dtype=torch.int32, device=cache.device)
        self._partials = attention.allocate_partials(self._max_splits, cache.device)

    def make_plan(self, num_rows: int) -> TritonAttentionPlan:
        """Return the plan of a step of `num_rows` tokens, the first ones on the token axis, all of them in spans."""
        buffers = self._static_buffers.device_lists
        programs = min(self._max_splits, max(num_rows, TARGET_PROGRAMS // self._attention.num_kv_heads))
        decodes_by_window = {window: DecodeSplits(split_entries.view(-1, INTS_PER_ENTRY),
                                                  split_offsets[:num_rows + 1], self._partials, programs)
                             for window, split_offsets, split_entries in zip(self._windows, buffers[::2], buffers[1::2],
                                                                             strict=True)}
        constants = self._attention.make_kernel_constants(self._cache)
        return TritonAttentionPlan(self._block_tables.flat_tables, decodes_by_window, self._no_tiles, constants,
                                   covers_all_tokens=True)

    def write_spans(self, decodes: list[TokenSpan]) -> bool:
        tables = [(span.blocks, -(-span.end // self._cache.block_size)) for span in decodes]
        first_blocks = range(0, len(decodes) * self._block_tables.max_blocks, self._block_tables.max_blocks)
        decode_entries = self._attention.list_decode_entries(decodes, first_blocks, self._cache)
        if (any(length > self._block_tables.max_blocks for _, length in tables)
            or not self._static_buffers.can_hold(decode_entries)):
            return False
        self._block_tables.update(tables)
        self._static_buffers.copy_to_device(decode_entries)
        return True


def list_split_entries(span: TokenSpan, first_block: int, window: int, tile_positions: int) -> list[int]:
    """Return the entries of the splits that a decode attends to. `first_block`: index in the table of its first
    block."""
    begin = max(0, span.end - window) // tile_positions * tile_positions if window else 0
    splits = range(begin // SPLIT_POSITIONS, -(-span.end // SPLIT_POSITIONS))
    entries = [span.first_row, first_block, span.start, 0] * len(splits)
    entries[3::INTS_PER_ENTRY] = splits
    return entries


def iter_chunk_tile_entries(chunk: TokenSpan, first_block: int, tokens_per_tile: int) -> Iterator[int]:
    """Yield the entries of a chunk's tiles of `tokens_per_tile` tokens. `first_block`: index in the table of its first
    block."""
    for start in range(0, chunk.length, tokens_per_tile):
        yield from (chunk.first_row + start, first_block, chunk.start + start,
                    min(tokens_per_tile, chunk.length - start))


def pad_head_dim(head_dim: int) -> int:
    """Return the width to which head_dim is padded for tl.dot."""
    width: int = next_power_of_2(head_dim)
    return max(MIN_DOT_SIZE, width)
