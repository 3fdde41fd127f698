"""Norms and rotary embedding on CPUs, each in one call of a kernel of shard/native/, with the functions of
`fused_ops.py`.

The results equal those of torch's operations up to the last rounding, and a row's bits depend on the row alone.
"""

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from shard.native.library import ACTIVATION_DTYPES, allocate_result, load_library
from shard.ops.rotary_arguments import HeadNormArguments, LayerCacheSlots, RotaryArguments

MAX_HEAD_DIM = 256  # as in rotary.c


class NormArguments(ctypes.Structure):
    """`Norm` in norms.c."""

    _fields_: ClassVar = [*((name, ctypes.c_void_p) for name in ("x", "delta", "weights", "results")),
                          *((name, ctypes.c_int64) for name in ("rows", "width", "format", "rounds_after_weight")),
                          ("epsilon", ctypes.c_float)]


class RotationArguments(ctypes.Structure):
    """`Rotation` in rotary.c."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("qkv", "weights", "cos_sin", "positions", "slots", "queries", "keys",
                                               "values")),
        *((name, ctypes.c_int64) for name in (
            "tokens", "heads", "kv_heads", "head_dim", "num_rotated", "interleaved", "rounds_after_weight",
            "qkv_stride", "slot_bytes", "format")),
        ("epsilon", ctypes.c_float)]


def can_norm(x: Tensor) -> bool:
    return x.ndim == 2 and x.dtype in ACTIVATION_DTYPES


def can_rotate(qkv_heads: Tensor) -> bool:
    return qkv_heads.shape[2] <= MAX_HEAD_DIM and qkv_heads.dtype in ACTIVATION_DTYPES


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, *, round_after_weight: bool,
             delta: Tensor | None = None) -> Tensor:
    """Return the RMS norm of `x: [rows, width]`. A `delta` of the same shape is added to `x` in place first.

    `round_after_weight`: round after multiplying by `weight: [width]`, in float32, not before.
    """
    library = load_library()
    assert library is not None
    rows, width = x.shape
    if delta is not None:
        delta = delta.contiguous()
    if not x.is_contiguous() or weight.dtype != torch.float32 or (
            delta is not None and (delta.dtype, delta.shape) != (x.dtype, x.shape)):  # the kernel cannot tell
        raise ValueError(f"needs contiguous rows with a float32 weight and deltas like them, got {x.stride()}, "
                         f"{weight.dtype}, {None if delta is None else (delta.dtype, delta.shape)}")
    results = allocate_result(rows, width, dtype=x.dtype)
    library.norm(NormArguments(
        x.data_ptr(), None if delta is None else delta.data_ptr(), weight.data_ptr(), results.data_ptr(), rows, width,
        ACTIVATION_DTYPES.index(x.dtype), round_after_weight, epsilon), num_results=rows * width)
    return results


def rotate_and_cache(qkv_heads: Tensor, qk_norm: HeadNormArguments | None, angles: RotaryArguments,
                     cache_slots: LayerCacheSlots) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to the cache, and return the queries.

    `qkv_heads: [tokens, heads + 2 * kv heads, head_dim]`: queries, keys and values.
    """
    library = load_library()
    assert library is not None
    num_tokens, num_all, head_dim = qkv_heads.shape
    keys, values = cache_slots.keys, cache_slots.values
    num_kv_heads = keys.shape[1] // head_dim
    num_heads = num_all - 2 * num_kv_heads
    if (qkv_heads.stride(2), qkv_heads.stride(1)) != (1, head_dim) or keys.dtype != qkv_heads.dtype or (
            qk_norm is not None and qk_norm.weight.dtype != torch.float32):  # the kernel cannot tell
        raise ValueError(f"needs heads side by side in the type of the cache, and float32 norms, got "
                         f"{qkv_heads.stride()}, {qkv_heads.dtype}, {keys.dtype}")
    queries = allocate_result(num_tokens, num_heads, head_dim, dtype=qkv_heads.dtype)
    library.rotate(RotationArguments(
        qkv_heads.data_ptr(), None if qk_norm is None else qk_norm.weight.data_ptr(), angles.cos_sin_table.data_ptr(),
        angles.positions.data_ptr(), cache_slots.slots.data_ptr(), queries.data_ptr(), keys.data_ptr(),
        values.data_ptr(), num_tokens, num_heads, num_kv_heads, head_dim, angles.cos_sin_table.shape[1],
        angles.interleaved, qk_norm is not None and qk_norm.round_after_weight, qkv_heads.stride(0),
        keys.stride(0) * keys.itemsize, ACTIVATION_DTYPES.index(qkv_heads.dtype),
        0.0 if qk_norm is None else qk_norm.epsilon),
        num_results=num_tokens * num_all * head_dim)
    return queries
