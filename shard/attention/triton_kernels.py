"""Paged attention as Triton kernels: one for decodes, one for chunks of prompts.

A sequence's positions are processed in splits of SPLIT, and a split in tiles of TILE. Within a split the softmax is
computed online, tile by tile; splits are then merged in order, by functions that both kernels share
(docs/concepts/exactness.md, "Fixed splits"). A tile that is masked completely for a row does not change that row.

`triton.py` describes the layout of the arguments.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # the softmax is computed in powers of two


@triton.jit
def compute_scores(queries, keys, scale, softcap, CAPPED: tl.constexpr):
    """Return the attention scores, [rows, positions], as exponents of two."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    if CAPPED:
        small = tl.exp2(tl.abs(scores) * (-2 * LOG2E / softcap))
        tanh = (1 - small) / (1 + small)  # absolute value of the hyperbolic tangent
        scores = softcap * tl.where(scores < 0, -tanh, tanh)
    return scores * LOG2E


@triton.jit
def merge_partials(max_exponent, weight_sum, value_sum, other_max_exponent, other_weight_sum, other_value_sum):
    """Merge two partial softmaxes. If all positions of a row are masked, its `max_exponent` is minus infinity."""
    peak = tl.maximum(max_exponent, other_max_exponent)
    around = tl.where(peak == float("-inf"), 0.0, peak)
    fade, more_fade = tl.exp2(max_exponent - around), tl.exp2(other_max_exponent - around)
    return (peak, tl.fma(weight_sum, fade, other_weight_sum * more_fade),
            tl.fma(value_sum, fade[:, None], other_value_sum * more_fade[:, None]))


@triton.jit
def attend_split(queries, row_positions, block_table, keys, values, slot_stride, kv_head, begin, end, scale, softcap,
                 CAPPED: tl.constexpr, WINDOW: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
                 BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr):
    """Return the partial softmax over positions `begin` to `end` for rows at positions `row_positions`: maximum
    exponent, sum, and weighted sum of values, not divided by the sum yet."""
    max_exponent = tl.full([ROWS], float("-inf"), tl.float32)
    weight_sum = tl.zeros([ROWS], tl.float32)
    value_sum = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    dims = tl.arange(0, HEAD_PAD)
    for first in range(begin, end, TILE):
        positions = first + tl.arange(0, TILE)
        is_valid = positions < end
        blocks = tl.load(block_table + positions // BLOCK_SIZE, mask=is_valid, other=0).to(tl.int64)
        slots = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
        offsets = slots[:, None] * slot_stride + kv_head * HEAD_DIM + dims[None, :]
        read = is_valid[:, None] & (dims < HEAD_DIM)[None, :]
        scores = compute_scores(queries, tl.load(keys + offsets, mask=read, other=0.0), scale, softcap, CAPPED)
        is_attended = positions[None, :] <= row_positions[:, None]
        if WINDOW:
            is_attended = is_attended & (positions[None, :] > row_positions[:, None] - WINDOW)
        scores = tl.where(is_attended, scores, float("-inf"))
        peak = tl.maximum(max_exponent, tl.max(scores, 1))
        around = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp2(scores - around[:, None])
        fade = tl.exp2(max_exponent - around)
        weight_sum = weight_sum * fade + tl.sum(weights, 1)
        tile = tl.load(values + offsets, mask=read, other=0.0)
        value_sum = value_sum * fade[:, None] + tl.dot(weights.to(tile.dtype), tile, input_precision="ieee")
        max_exponent = peak
    return max_exponent, weight_sum, value_sum


@triton.jit
def first_tile_position(position, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """Return the start of the first tile that a token at this position attends to."""
    if WINDOW:
        return tl.maximum(position - WINDOW + 1, 0) // TILE * TILE
    return 0


@triton.jit(do_not_specialize=["num_decodes"])
def attend_decode_splits(queries, keys, values, block_tables, split_entries, split_offsets, max_exponents, weight_sums,
                         value_sums, num_decodes, token_stride, slot_stride, scale, softcap, CAPPED: tl.constexpr,
                         WINDOW: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
                         BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr):
    """Compute splits of decodes for the heads that share a KV head. Grid: (programs, KV heads).

    Programs loop over the entries of `split_entries`, so a launch need not know how many there are: the last number in
    `split_offsets` is their count."""
    head, rows, dims = tl.program_id(1), tl.arange(0, ROWS), tl.arange(0, HEAD_PAD)
    heads = head * GROUP + rows
    is_valid = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    for number in range(tl.program_id(0), tl.load(split_offsets + num_decodes), tl.num_programs(0)):
        entry = tl.full([1], number, tl.int64)
        token = tl.load(split_entries + 4 * number).to(tl.int64)
        first_block = tl.load(split_entries + 4 * number + 1).to(tl.int64)
        position = tl.load(split_entries + 4 * number + 2)
        start = tl.load(split_entries + 4 * number + 3) * SPLIT
        query_rows = tl.load(queries + token * token_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=is_valid,
                             other=0.0)
        row_positions = tl.where(rows < GROUP, position, -1)
        begin = tl.maximum(start, first_tile_position(position, WINDOW, TILE))
        end = tl.minimum(start + SPLIT, position + 1)
        peak, weight, mix = attend_split(query_rows, row_positions, block_tables + first_block, keys, values,
                                         slot_stride, head, begin, end, scale, softcap, CAPPED, WINDOW, HEAD_DIM,
                                         HEAD_PAD, BLOCK_SIZE, TILE, ROWS)
        partial_offsets = entry * tl.num_programs(1) * GROUP + heads
        tl.store(max_exponents + partial_offsets, peak, mask=rows < GROUP)
        tl.store(weight_sums + partial_offsets, weight, mask=rows < GROUP)
        tl.store(value_sums + partial_offsets[:, None] * HEAD_DIM + dims[None, :], mix, mask=is_valid)


@triton.jit
def merge_decode_splits(max_exponents, weight_sums, value_sums, output, split_offsets, HEAD_DIM: tl.constexpr,
                        HEAD_PAD: tl.constexpr):
    """Merge the splits of each decode. Grid: (decodes, heads). Decode i has splits `split_offsets[i]` to
    `split_offsets[i + 1]`."""
    token, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    dims = tl.arange(0, HEAD_PAD)
    one = tl.arange(0, 1).to(tl.int64)
    peak = tl.full([1], float("-inf"), tl.float32)
    weight = tl.zeros([1], tl.float32)
    mix = tl.zeros([1, HEAD_PAD], tl.float32)
    for entry in range(tl.load(split_offsets + token), tl.load(split_offsets + token + 1)):
        place = (one + entry) * heads + head
        more = tl.load(value_sums + place[:, None] * HEAD_DIM + dims[None, :], mask=(dims < HEAD_DIM)[None, :],
                       other=0.0)
        peak, weight, mix = merge_partials(peak, weight, mix, tl.load(max_exponents + place),
                                           tl.load(weight_sums + place), more)
    result = (mix / weight[:, None]).to(output.dtype.element_ty)
    at = ((token + one) * heads + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(output + at, result, mask=(dims < HEAD_DIM)[None, :])


@triton.jit
def attend_chunk_tiles(queries, keys, values, block_tables, chunk_tile_entries, output, token_stride, slot_stride,
                       scale, softcap, CAPPED: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr,
                       HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr,
                       TILE: tl.constexpr, ROWS: tl.constexpr):
    """Compute one tile of a chunk's tokens for the heads that share a KV head. Grid: (tiles, KV heads).

    Rows are ordered by token, then by head."""
    entry, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(chunk_tile_entries + 4 * entry).to(tl.int64)
    first_block = tl.load(chunk_tile_entries + 4 * entry + 1).to(tl.int64)
    start = tl.load(chunk_tile_entries + 4 * entry + 2)
    length = tl.load(chunk_tile_entries + 4 * entry + 3)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD_PAD)
    filled = rows < length * GROUP
    at = ((token + rows // GROUP) * token_stride + (head * GROUP + rows % GROUP) * HEAD_DIM)[:, None] + dims[None, :]
    is_valid = filled[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = tl.load(queries + at, mask=is_valid, other=0.0)
    row_positions = tl.where(filled, start + rows // GROUP, -1)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    mix = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    begin = first_tile_position(start, WINDOW, TILE)
    for split in range(begin // SPLIT * SPLIT, start + length, SPLIT):
        more_peak, more_weight, more_mix = attend_split(
            query_rows, row_positions, block_tables + first_block, keys, values, slot_stride, head,
            tl.maximum(split, begin), tl.minimum(split + SPLIT, start + length), scale, softcap,
            CAPPED, WINDOW, HEAD_DIM, HEAD_PAD, BLOCK_SIZE, TILE, ROWS)
        peak, weight, mix = merge_partials(peak, weight, mix, more_peak, more_weight, more_mix)
    result = (mix / tl.where(filled, weight, 1.0)[:, None]).to(output.dtype.element_ty)
    heads = tl.num_programs(1) * GROUP
    at = ((token + rows // GROUP) * heads + head * GROUP + rows % GROUP)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(output + at, result, mask=is_valid)
