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
def norm_heads(x, other, weight, weight_offsets, other_weight_offsets, inside, is_rotated, epsilon,
               ROUND_AFTER_WEIGHT: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Return `x` and `other`, both scaled by the RMS of the rows of `x`, as float32. `other` holds values of these rows
    in another order."""
    wide = x.to(tl.float32)
    scales = rms_scale(tl.sum(wide * wide, 1), HEAD_DIM, epsilon)[:, None]
    factors = tl.load(weight + weight_offsets, mask=inside, other=0.0)
    other_factors = tl.load(weight + other_weight_offsets, mask=is_rotated, other=0.0)
    return (apply_norm(x, factors, scales, ROUND_AFTER_WEIGHT),
            apply_norm(other, other_factors, scales, ROUND_AFTER_WEIGHT))


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
                           HEAD_DIM: tl.constexpr, HEADS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr):
    """Process some heads of one token of the QKV linear's output: norm queries and keys if HAS_NORM, rotate their first
    ROTATED_DIM values by the token's position, and write queries to `queries`, keys and values to the cache."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS_PER_PROGRAM + tl.arange(0, HEADS_PER_PROGRAM)[:, None]
    dims = tl.arange(0, BLOCK)[None, :]
    is_query, is_value = heads < NUM_HEADS, heads >= NUM_HEADS + NUM_KV_HEADS
    inside = (heads < NUM_HEADS + 2 * NUM_KV_HEADS) & (dims < HEAD_DIM)
    is_rotated = (dims < ROTATED_DIM) & (heads < NUM_HEADS + NUM_KV_HEADS)
    if INTERLEAVED:
        partners, angles, first = dims ^ 1, dims // 2, dims % 2 == 0
    else:
        first = dims < ROTATED_DIM // 2
        partners = tl.where(first, dims + ROTATED_DIM // 2, dims - ROTATED_DIM // 2)
        angles = tl.where(first, dims, dims - ROTATED_DIM // 2)
    head_offsets = (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + heads) * HEAD_DIM
    head_values = tl.load(qkv + head_offsets + dims, mask=inside, other=0.0)
    other = tl.load(qkv + head_offsets + partners, mask=is_rotated, other=0.0)
    wide, wide_other = head_values.to(tl.float32), other.to(tl.float32)
    if HAS_NORM:
        wide, wide_other = norm_heads(head_values, other, weight, heads * HEAD_DIM + dims, heads * HEAD_DIM + partners,
                                      inside & ~is_value, is_rotated, epsilon, ROUND_AFTER_WEIGHT, HEAD_DIM)
    angle = cos_sin_table + tl.load(positions + token) * ROTATED_DIM + angles
    cosines = tl.load(angle, mask=dims < ROTATED_DIM, other=1.0)
    sines = tl.load(angle + ROTATED_DIM // 2, mask=dims < ROTATED_DIM, other=0.0)
    rotated = (wide * cosines + wide_other * tl.where(first, -sines, sines)).to(head_values.dtype)
    slot_offset = tl.load(slots + token) * slot_stride
    tl.store(queries + (token * NUM_HEADS + heads) * HEAD_DIM + dims, rotated, mask=inside & is_query)
    tl.store(keys + slot_offset + (heads - NUM_HEADS) * HEAD_DIM + dims, rotated, mask=inside & ~is_query & ~is_value)
    tl.store(values + slot_offset + (heads - NUM_HEADS - NUM_KV_HEADS) * HEAD_DIM + dims, head_values,
             mask=inside & is_value)
