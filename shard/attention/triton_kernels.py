"""Paged attention as Triton kernels: one for decodes, one for chunks of prompts.

A sequence's positions are processed in splits of SPLIT, counted from its first token, and a split in tiles of TILE.
Within a split the softmax is computed online, tile by tile; splits are then merged in order. Both kernels share these
functions, so a row adds up the same numbers in the same order whether it is decoded or part of a chunk. A tile that is
masked completely for a row does not change that row.

`triton.py` describes the layout of the arguments.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # the softmax is computed in powers of two


@triton.jit
def scores_of(queries, keys, scale, softcap, CAPPED: tl.constexpr):
    """Return the attention scores, [rows, places], as exponents of two."""
    found = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    if CAPPED:
        small = tl.exp2(tl.abs(found) * (-2 * LOG2E / softcap))
        bent = (1 - small) / (1 + small)  # absolute value of the hyperbolic tangent
        found = softcap * tl.where(found < 0, -bent, bent)
    return found * LOG2E


@triton.jit
def merged(best, total, mixed, more_best, more_total, more_mixed):
    """Merge two partial softmaxes. If all positions of a row are masked, its `best` is minus infinity."""
    peak = tl.maximum(best, more_best)
    around = tl.where(peak == float("-inf"), 0.0, peak)
    fade, more_fade = tl.exp2(best - around), tl.exp2(more_best - around)
    return (peak, tl.fma(total, fade, more_total * more_fade),
            tl.fma(mixed, fade[:, None], more_mixed * more_fade[:, None]))


@triton.jit
def over_split(queries, own, table, keys, values, slot_stride, head, begin, end, scale, softcap,
               CAPPED: tl.constexpr, WINDOW: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
               BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr):
    """Return the partial softmax over positions `begin` to `end` for rows at positions `own`: maximum exponent, sum,
    and weighted sum of values, not divided by the sum yet."""
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    dims = tl.arange(0, HEAD_PAD)
    for first in range(begin, end, TILE):
        places = first + tl.arange(0, TILE)
        held = places < end
        blocks = tl.load(table + places // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
        slots = blocks * BLOCK_SIZE + places % BLOCK_SIZE
        at = slots[:, None] * slot_stride + head * HEAD_DIM + dims[None, :]
        read = held[:, None] & (dims < HEAD_DIM)[None, :]
        scores = scores_of(queries, tl.load(keys + at, mask=read, other=0.0), scale, softcap, CAPPED)
        seen = places[None, :] <= own[:, None]
        if WINDOW:
            seen = seen & (places[None, :] > own[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        around = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp2(scores - around[:, None])
        fade = tl.exp2(best - around)
        total = total * fade + tl.sum(weights, 1)
        tile = tl.load(values + at, mask=read, other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(tile.dtype), tile, input_precision="ieee")
        best = peak
    return best, total, mixed


@triton.jit
def first_place(position, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """Return the start of the first tile that a token at this position attends to."""
    if WINDOW:
        return tl.maximum(position - WINDOW + 1, 0) // TILE * TILE
    return 0


@triton.jit(do_not_specialize=["num_decodes"])
def decode_splits(queries, keys, values, table, work, entries, best, total, mixed, num_decodes, token_stride,
                  slot_stride, scale, softcap, CAPPED: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr,
                  HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr,
                  TILE: tl.constexpr, ROWS: tl.constexpr):
    """Compute splits of decodes for the heads that share a KV head. Grid: (programs, KV heads).

    Programs loop over the entries of `work`, so a launch need not know how many there are: the last number in
    `entries` is their count."""
    head, rows, dims = tl.program_id(1), tl.arange(0, ROWS), tl.arange(0, HEAD_PAD)
    heads = head * GROUP + rows
    real = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    for number in range(tl.program_id(0), tl.load(entries + num_decodes), tl.num_programs(0)):
        entry = tl.full([1], number, tl.int64)
        token = tl.load(work + 4 * number).to(tl.int64)
        first_block = tl.load(work + 4 * number + 1).to(tl.int64)
        position = tl.load(work + 4 * number + 2)
        start = tl.load(work + 4 * number + 3) * SPLIT
        asked = tl.load(queries + token * token_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=real,
                        other=0.0)
        own = tl.where(rows < GROUP, position, -1)
        begin = tl.maximum(start, first_place(position, WINDOW, TILE))
        end = tl.minimum(start + SPLIT, position + 1)
        peak, weight, mix = over_split(
            asked, own, table + first_block, keys, values, slot_stride, head, begin, end, scale, softcap,
            CAPPED, WINDOW, HEAD_DIM, HEAD_PAD, BLOCK_SIZE, TILE, ROWS)
        places = entry * tl.num_programs(1) * GROUP + heads
        tl.store(best + places, peak, mask=rows < GROUP)
        tl.store(total + places, weight, mask=rows < GROUP)
        tl.store(mixed + places[:, None] * HEAD_DIM + dims[None, :], mix, mask=real)


@triton.jit
def decode_merge(best, total, mixed, output, entries, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr):
    """Merge the splits of each decode. Grid: (decodes, heads). Decode i has splits `entries[i]` to `entries[i + 1]`."""
    token, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    dims = tl.arange(0, HEAD_PAD)
    one = tl.arange(0, 1).to(tl.int64)
    peak = tl.full([1], float("-inf"), tl.float32)
    weight = tl.zeros([1], tl.float32)
    mix = tl.zeros([1, HEAD_PAD], tl.float32)
    for entry in range(tl.load(entries + token), tl.load(entries + token + 1)):
        place = (one + entry) * heads + head
        more = tl.load(mixed + place[:, None] * HEAD_DIM + dims[None, :], mask=(dims < HEAD_DIM)[None, :], other=0.0)
        peak, weight, mix = merged(peak, weight, mix, tl.load(best + place), tl.load(total + place), more)
    result = (mix / weight[:, None]).to(output.dtype.element_ty)
    at = ((token + one) * heads + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(output + at, result, mask=(dims < HEAD_DIM)[None, :])


@triton.jit
def chunk_tiles(queries, keys, values, table, tiles, output, token_stride, slot_stride, scale, softcap,
                CAPPED: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
                HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
                ROWS: tl.constexpr):
    """Compute one tile of a chunk's tokens for the heads that share a KV head. Grid: (tiles, KV heads).

    Rows are ordered by token, then by head."""
    entry, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(tiles + 4 * entry).to(tl.int64)
    first_block = tl.load(tiles + 4 * entry + 1).to(tl.int64)
    start = tl.load(tiles + 4 * entry + 2)
    length = tl.load(tiles + 4 * entry + 3)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD_PAD)
    filled = rows < length * GROUP
    at = ((token + rows // GROUP) * token_stride + (head * GROUP + rows % GROUP) * HEAD_DIM)[:, None] + dims[None, :]
    real = filled[:, None] & (dims < HEAD_DIM)[None, :]
    asked = tl.load(queries + at, mask=real, other=0.0)
    own = tl.where(filled, start + rows // GROUP, -1)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    mix = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    begin = first_place(start, WINDOW, TILE)
    for split in range(begin // SPLIT * SPLIT, start + length, SPLIT):
        more_peak, more_weight, more_mix = over_split(
            asked, own, table + first_block, keys, values, slot_stride, head,
            tl.maximum(split, begin), tl.minimum(split + SPLIT, start + length), scale, softcap,
            CAPPED, WINDOW, HEAD_DIM, HEAD_PAD, BLOCK_SIZE, TILE, ROWS)
        peak, weight, mix = merged(peak, weight, mix, more_peak, more_weight, more_mix)
    result = (mix / tl.where(filled, weight, 1.0)[:, None]).to(output.dtype.element_ty)
    heads = tl.num_programs(1) * GROUP
    at = ((token + rows // GROUP) * heads + head * GROUP + rows % GROUP)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(output + at, result, mask=real)
