"""Norms, activations and rotary embedding, each in one launch of a Triton kernel of `fused_kernels.py`.

The results equal those of torch's operations up to the last rounding.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from triton import next_power_of_2

from shard.ops.fused_kernels import gated_activation_rows, rms_norm_rows, rotate_and_cache_heads
from shard.ops.rotary_arguments import HeadNormArguments, LayerCacheSlots, RotaryArguments

ELEMENTS_PER_PROGRAM = 1024  # elements of a row per program of an activation
MAX_ELEMENTS_PER_WARP = 512  # elements of a row per warp of a norm
HEADS_PER_PROGRAM, WARPS_FOR_HEADS = 8, 4  # of the rotary embedding; the same for every number of tokens


def can_norm(x: Tensor) -> bool:  # noqa: ARG001 - as in native_fused_ops.py
    return True


def can_rotate(qkv_heads: Tensor) -> bool:  # noqa: ARG001
    return True


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, *, round_after_weight: bool,
             delta: Tensor | None = None) -> Tensor:
    """Return the RMS norm of `x: [..., width]`. A `delta` of the same shape is added to `x` in place first.

    `round_after_weight`: round after multiplying by `weight: [width]`, not before.
    """
    output, block = torch.empty_like(x), next_power_of_2(x.shape[-1])
    rms_norm_rows[(x.numel() // x.shape[-1],)](x, x if delta is None else delta, weight, output, epsilon,
                                               ADD_DELTA=delta is not None, ROUND_AFTER_WEIGHT=round_after_weight,
                                               WIDTH=x.shape[-1], BLOCK=block,
                                               num_warps=min(16, max(1, block // MAX_ELEMENTS_PER_WARP)))
    return output


def apply_gated_activation(gate: Tensor, up: Tensor, *, use_gelu_tanh: bool) -> Tensor:
    """Return activation(gate) * up; both are halves of the same rows, `[rows, width]` each."""
    rows, width = gate.shape
    output = torch.empty(rows, width, dtype=gate.dtype, device=gate.device)
    gated_activation_rows[(rows, -(-width // ELEMENTS_PER_PROGRAM))](
        gate, up, output, gate.stride(0), GELU_TANH=use_gelu_tanh, WIDTH=width, BLOCK=ELEMENTS_PER_PROGRAM, num_warps=4)
    return output


GATED_ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # by their names in config.json
    "silu": partial(apply_gated_activation, use_gelu_tanh=False),
    "gelu_pytorch_tanh": partial(apply_gated_activation, use_gelu_tanh=True),
}


def rotate_and_cache(qkv_heads: Tensor, qk_norm: HeadNormArguments | None, angles: RotaryArguments,
                     cache_slots: LayerCacheSlots) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to the cache, and return the queries.

    `qkv_heads: [tokens, heads + 2 * kv heads, head_dim]`: queries, keys and values.
    """
    num_tokens, num_all, head_dim = qkv_heads.shape
    num_kv_heads = cache_slots.keys.shape[1] // head_dim
    num_heads = num_all - 2 * num_kv_heads
    queries = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv_heads.dtype, device=qkv_heads.device)
    weight, epsilon, round_after_weight = qk_norm or HeadNormArguments(qkv_heads, 0.0, round_after_weight=False)
    rotate_and_cache_heads[num_tokens, -(-num_all // HEADS_PER_PROGRAM)](
        qkv_heads, weight, angles.cos_sin_table, angles.positions, cache_slots.slots, queries, cache_slots.keys,
        cache_slots.values, epsilon, cache_slots.keys.stride(0), HAS_NORM=qk_norm is not None,
        ROUND_AFTER_WEIGHT=round_after_weight, INTERLEAVED=angles.interleaved,
        ROTATED_DIM=angles.cos_sin_table.shape[1], NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        HEADS_PER_PROGRAM=HEADS_PER_PROGRAM, BLOCK=next_power_of_2(head_dim), num_warps=WARPS_FOR_HEADS)
    return queries
