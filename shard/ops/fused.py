"""Norms, activations and rotary embedding, each in one launch of a Triton kernel of `fused_kernels.py`.

The results equal those of torch's operations up to the last rounding.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from shard.ops.fused_kernels import enter_heads, gate_rows, norm_rows

PIECE = 1024  # elements of a row per program of an activation
MOST_PER_WARP = 512  # elements of a row per warp of a norm


def norm(x: Tensor, weight: Tensor, epsilon: float, *, wide: bool, delta: Tensor | None = None) -> Tensor:
    """Return the RMS norm of `x: [..., width]`. A `delta` of the same shape is added to `x` in place first.

    `wide`: round after multiplying by `weight: [width]`, not before.
    """
    output, block = torch.empty_like(x), next_power_of_2(x.shape[-1])
    norm_rows[(x.numel() // x.shape[-1],)](
        x, x if delta is None else delta, weight, output, epsilon, ADDS=delta is not None, WIDE=wide, WIDTH=x.shape[-1],
        BLOCK=block, num_warps=min(16, max(1, block // MOST_PER_WARP)))
    return output


def gated(gate: Tensor, up: Tensor, *, tanh: bool) -> Tensor:
    """Return activation(gate) * up; both are halves of the same rows, `[rows, width]` each."""
    rows, width = gate.shape
    output = torch.empty(rows, width, dtype=gate.dtype, device=gate.device)
    gate_rows[(rows, -(-width // PIECE))](
        gate, up, output, gate.stride(0), TANH=tanh, WIDTH=width, BLOCK=PIECE, num_warps=4)
    return output


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    return gated(gate, up, tanh=False)


def gelu_tanh_times(gate: Tensor, up: Tensor) -> Tensor:
    return gated(gate, up, tanh=True)


GATINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": silu_times, "gelu_pytorch_tanh": gelu_tanh_times}  # by their names in config.json


class HeadNorm(NamedTuple):
    """Norm of every head by itself."""

    weight: Tensor  # [heads + kv heads, head_dim]
    epsilon: float
    wide: bool


class Angles(NamedTuple):
    """Rotary embedding of a step's positions."""

    table: Tensor  # [positions, num_turned]: cosines, then sines
    positions: Tensor  # [tokens]
    neighbours: bool  # whether a value's partner is adjacent, not half a head away


class Rows(NamedTuple):
    """Cache of one layer, and the slots that a step writes."""

    keys: Tensor  # [slots, kv heads * head_dim]
    values: Tensor  # [slots, kv heads * head_dim]
    slots: Tensor  # [tokens], slot of each token of the step


def enter(heads: Tensor, head_norm: HeadNorm | None, angles: Angles, rows: Rows) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to the cache, and return the queries.

    `heads: [tokens, heads + 2 * kv heads, head_dim]`: queries, keys and values.
    """
    num_tokens, num_all, head_dim = heads.shape
    num_kv_heads = rows.keys.shape[1] // head_dim
    num_heads = num_all - 2 * num_kv_heads
    queries = torch.empty(num_tokens, num_heads, head_dim, dtype=heads.dtype, device=heads.device)
    weight, epsilon, wide = head_norm or HeadNorm(heads, 0.0, wide=False)
    enter_heads[num_tokens, num_all](
        heads, weight, angles.table, angles.positions, rows.slots, queries, rows.keys, rows.values, epsilon,
        rows.keys.stride(0), NORMS=head_norm is not None, WIDE=wide, NEIGHBOURS=angles.neighbours,
        TURNED=angles.table.shape[1], HEADS=num_heads, KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        BLOCK=next_power_of_2(head_dim), num_warps=1)
    return queries
