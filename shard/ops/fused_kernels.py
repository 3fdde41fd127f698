"""Triton kernels of the operations between a model's linears: norms, activations, rotary embedding with cache write.

A row is computed in float32. Norms round where torch's own operations would, activations only at their end. A row is
split into programs in the same way regardless of other rows. `fused.py` describes the layout of the arguments.
"""

import triton
import triton.language as tl


@triton.jit
def scale_of(squares, width, epsilon):
    """Return the factor of an RMS norm from the sum of squares."""
    return 1 / tl.sqrt_rn(squares / width + epsilon)


@triton.jit
def norm_rows(x, delta, weight, output, epsilon, ADDS: tl.constexpr, WIDE: tl.constexpr, WIDTH: tl.constexpr,
              BLOCK: tl.constexpr):
    """Compute the RMS norm of one row of `x`. ADDS: add the row of `delta` to it in place first. WIDE: round after
    multiplying by the weight, not before."""
    columns = tl.arange(0, BLOCK)
    inside, at = columns < WIDTH, tl.program_id(0).to(tl.int64) * WIDTH + columns
    values = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        more = tl.load(delta + at, mask=inside, other=0.0)
        values = (values.to(tl.float32) + more.to(tl.float32)).to(values.dtype)
        tl.store(x + at, values, mask=inside)
    wide = values.to(tl.float32)
    scaled = wide * scale_of(tl.sum(wide * wide, 0), WIDTH, epsilon)
    factors = tl.load(weight + columns, mask=inside, other=0.0)
    if WIDE:
        result = scaled * factors
    else:
        result = scaled.to(values.dtype).to(tl.float32) * factors.to(tl.float32)
    tl.store(output + at, result.to(values.dtype), mask=inside)


@triton.jit
def gate_rows(gate, up, output, row_stride, TANH: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Compute activation(gate) * up for a block of a row. The activation is silu, or with TANH gelu approximated by
    tanh."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(gate + row * row_stride + columns, mask=inside, other=0.0)
    wide = values.to(tl.float32)
    bent = wide
    if TANH:
        bent = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)  # 2 * sqrt(2 / pi)
    small = tl.exp(-tl.abs(bent))
    active = wide * tl.where(bent < 0, small, 1.0) / (1 + small)  # times the sigmoid of `bent`
    factors = tl.load(up + row * row_stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * WIDTH + columns, (active * factors).to(values.dtype), mask=inside)


@triton.jit
def head_scale(x, at, inside, HEAD_DIM: tl.constexpr, epsilon):
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    return scale_of(tl.sum(wide * wide, 0), HEAD_DIM, epsilon)


@triton.jit
def normed(values, factors, scale, WIDE: tl.constexpr):
    """Return the normed values as float32, rounded to the dtype of `values`."""
    if WIDE:
        return (values.to(tl.float32) * scale * factors).to(values.dtype).to(tl.float32)
    rounded = (values.to(tl.float32) * scale).to(values.dtype)
    return (rounded.to(tl.float32) * factors.to(tl.float32)).to(values.dtype).to(tl.float32)


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def enter_heads(qkv, weight, table, positions, slots, queries, keys, values, epsilon, slot_stride,
                NORMS: tl.constexpr, WIDE: tl.constexpr, NEIGHBOURS: tl.constexpr, TURNED: tl.constexpr,
                HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Process one head of one token of the QKV linear's output: norm queries and keys if NORMS, rotate their first
    TURNED values by the token's position, and write queries to `queries`, keys and values to the cache."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, BLOCK)
    inside = dims < HEAD_DIM
    at = (token * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM
    own = tl.load(qkv + at + dims, mask=inside, other=0.0)
    place = tl.load(slots + token) * slot_stride
    if head >= HEADS + KV_HEADS:
        tl.store(values + place + (head - HEADS - KV_HEADS) * HEAD_DIM + dims, own, mask=inside)
    else:
        turning = dims < TURNED
        if NEIGHBOURS:
            partners, angles, first = dims ^ 1, dims // 2, dims % 2 == 0
        else:
            first = dims < TURNED // 2
            partners = tl.where(first, dims + TURNED // 2, dims - TURNED // 2)
            angles = tl.where(first, dims, dims - TURNED // 2)
        other = tl.load(qkv + at + partners, mask=turning, other=0.0)
        wide, wide_other = own.to(tl.float32), other.to(tl.float32)
        if NORMS:
            scale = head_scale(qkv, at + dims, inside, HEAD_DIM, epsilon)
            factors = tl.load(weight + head * HEAD_DIM + dims, mask=inside, other=0.0)
            other_factors = tl.load(weight + head * HEAD_DIM + partners, mask=turning, other=0.0)
            wide, wide_other = normed(own, factors, scale, WIDE), normed(other, other_factors, scale, WIDE)
        angle = table + tl.load(positions + token) * TURNED + angles
        cosines = tl.load(angle, mask=turning, other=1.0)
        sines = tl.load(angle + TURNED // 2, mask=turning, other=0.0)
        result = (wide * cosines + wide_other * tl.where(first, -sines, sines)).to(own.dtype)
        if head < HEADS:
            tl.store(queries + (token * HEADS + head) * HEAD_DIM + dims, result, mask=inside)
        else:
            tl.store(keys + place + (head - HEADS) * HEAD_DIM + dims, result, mask=inside)
