"""Triton kernels of the operations between a model's linears: norms, activations, rotary embedding with cache write.

A row is computed in float32. Norms round where torch's own operations would, activations only at their end. How a row
is split into programs follows docs/concepts/exactness.md, "The same bits at any index". `fused_ops.py` describes the
layout of the arguments.
"""

import triton
import triton.language as tl


@triton.jit
def rms_scale(sum_of_squares, width, epsilon):
    """Return the factor of an RMS norm from the sum of squares."""
    return 1 / tl.sqrt_rn(sum_of_squares / width + epsilon)


@triton.jit
def rms_norm_rows(x, delta, weight, output, epsilon, ADD_DELTA: tl.constexpr, ROUND_AFTER_WEIGHT: tl.constexpr,
                  WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the RMS norm of one row of `x`. ADD_DELTA: add the row of `delta` to it in place first.
    ROUND_AFTER_WEIGHT: round after multiplying by the weight, not before."""
    columns = tl.arange(0, BLOCK)
    inside, offsets = columns < WIDTH, tl.program_id(0).to(tl.int64) * WIDTH + columns
    values = tl.load(x + offsets, mask=inside, other=0.0)
    if ADD_DELTA:
        deltas = tl.load(delta + offsets, mask=inside, other=0.0)
        values = (values.to(tl.float32) + deltas.to(tl.float32)).to(values.dtype)
        tl.store(x + offsets, values, mask=inside)
    wide = values.to(tl.float32)
    scaled = wide * rms_scale(tl.sum(wide * wide, 0), WIDTH, epsilon)
    factors = tl.load(weight + columns, mask=inside, other=0.0)
    if ROUND_AFTER_WEIGHT:
        result = scaled * factors
    else:
        result = scaled.to(values.dtype).to(tl.float32) * factors.to(tl.float32)
    tl.store(output + offsets, result.to(values.dtype), mask=inside)


@triton.jit
def gated_activation_rows(gate, up, output, row_stride, GELU_TANH: tl.constexpr, WIDTH: tl.constexpr,
                          BLOCK: tl.constexpr):
    """Compute activation(gate) * up for a block of a row. The activation is silu, or with GELU_TANH gelu approximated
    by tanh."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(gate + row * row_stride + columns, mask=inside, other=0.0)
    wide = values.to(tl.float32)
    sigmoid_input = wide
    if GELU_TANH:
        sigmoid_input = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)  # 2 * sqrt(2 / pi)
    small = tl.exp(-tl.abs(sigmoid_input))
    active = wide * tl.where(sigmoid_input < 0, small, 1.0) / (1 + small)  # times the sigmoid of `sigmoid_input`
    factors = tl.load(up + row * row_stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * WIDTH + columns, (active * factors).to(values.dtype), mask=inside)


@triton.jit
def rms_scale_of_head(x, offsets, mask, HEAD_DIM: tl.constexpr, epsilon):
    wide = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    return rms_scale(tl.sum(wide * wide, 0), HEAD_DIM, epsilon)


@triton.jit
def apply_norm(values, weights, scale, ROUND_AFTER_WEIGHT: tl.constexpr):
    """Return the normed values as float32, rounded to the dtype of `values`."""
    if ROUND_AFTER_WEIGHT:
        return (values.to(tl.float32) * scale * weights).to(values.dtype).to(tl.float32)
    rounded = (values.to(tl.float32) * scale).to(values.dtype)
    return (rounded.to(tl.float32) * weights.to(tl.float32)).to(values.dtype).to(tl.float32)


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def rotate_and_cache_heads(qkv, weight, cos_sin_table, positions, slots, queries, keys, values, epsilon, slot_stride,
                           HAS_NORM: tl.constexpr, ROUND_AFTER_WEIGHT: tl.constexpr, INTERLEAVED: tl.constexpr,
                           ROTATED_DIM: tl.constexpr, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr,
                           HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Process one head of one token of the QKV linear's output: norm queries and keys if HAS_NORM, rotate their first
    ROTATED_DIM values by the token's position, and write queries to `queries`, keys and values to the cache."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, BLOCK)
    inside = dims < HEAD_DIM
    head_offset = (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM
    head_values = tl.load(qkv + head_offset + dims, mask=inside, other=0.0)
    slot_offset = tl.load(slots + token) * slot_stride
    if head >= NUM_HEADS + NUM_KV_HEADS:
        tl.store(values + slot_offset + (head - NUM_HEADS - NUM_KV_HEADS) * HEAD_DIM + dims, head_values, mask=inside)
    else:
        is_rotated = dims < ROTATED_DIM
        if INTERLEAVED:
            partners, angles, first = dims ^ 1, dims // 2, dims % 2 == 0
        else:
            first = dims < ROTATED_DIM // 2
            partners = tl.where(first, dims + ROTATED_DIM // 2, dims - ROTATED_DIM // 2)
            angles = tl.where(first, dims, dims - ROTATED_DIM // 2)
        other = tl.load(qkv + head_offset + partners, mask=is_rotated, other=0.0)
        wide, wide_other = head_values.to(tl.float32), other.to(tl.float32)
        if HAS_NORM:
            scale = rms_scale_of_head(qkv, head_offset + dims, inside, HEAD_DIM, epsilon)
            factors = tl.load(weight + head * HEAD_DIM + dims, mask=inside, other=0.0)
            other_factors = tl.load(weight + head * HEAD_DIM + partners, mask=is_rotated, other=0.0)
            wide, wide_other = (apply_norm(head_values, factors, scale, ROUND_AFTER_WEIGHT),
                                apply_norm(other, other_factors, scale, ROUND_AFTER_WEIGHT))
        angle = cos_sin_table + tl.load(positions + token) * ROTATED_DIM + angles
        cosines = tl.load(angle, mask=is_rotated, other=1.0)
        sines = tl.load(angle + ROTATED_DIM // 2, mask=is_rotated, other=0.0)
        result = (wide * cosines + wide_other * tl.where(first, -sines, sines)).to(head_values.dtype)
        if head < NUM_HEADS:
            tl.store(queries + (token * NUM_HEADS + head) * HEAD_DIM + dims, result, mask=inside)
        else:
            tl.store(keys + slot_offset + (head - NUM_HEADS) * HEAD_DIM + dims, result, mask=inside)
