"""Norms, activations and rotary embedding by Triton kernels, each in one launch. The same numbers as torch's operations
give, up to the last rounding. The kernels are in `pointwise_kernels.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from shard.layers.pointwise_kernels import enter_heads, gate_rows, norm_rows

PIECE = 1024  # numbers of a row that one program activates
MOST_PER_WARP = 512  # numbers of a row under a norm


def norm(x: Tensor, weight: Tensor, epsilon: float, *, wide: bool, delta: Tensor | None = None) -> Tensor:
    """`x`, `delta`: `[..., width]`, `weight: [width]`. The `delta` is added to `x` in place first. `wide`: rounded
    after the weight was multiplied with."""
    output, block = torch.empty_like(x), next_power_of_2(x.shape[-1])
    norm_rows[(x.numel() // x.shape[-1],)](
        x, x if delta is None else delta, weight, output, epsilon, ADDS=delta is not None, WIDE=wide, WIDTH=x.shape[-1],
        BLOCK=block, num_warps=min(16, max(1, block // MOST_PER_WARP)))
    return output


def gated(gate: Tensor, up: Tensor, *, tanh: bool) -> Tensor:
    """Halves of the same rows, `[rows, width]` each."""
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
    """Of every head by itself."""

    weight: Tensor  # [heads + kv heads, head_dim]
    epsilon: float
    wide: bool


class Angles(NamedTuple):
    """What rotary embedding is made of."""

    table: Tensor  # [positions, num_turned]: cosines, then sines
    positions: Tensor  # [tokens]
    neighbours: bool  # whether a value's partner is the one beside it


class Rows(NamedTuple):
    """Of one layer of the cache."""

    keys: Tensor  # [slots, kv heads * head_dim]
    values: Tensor  # [slots, kv heads * head_dim]
    slots: Tensor  # [tokens], where those of the step go


def enter(heads: Tensor, head_norm: HeadNorm | None, angles: Angles, rows: Rows) -> Tensor:
    """From a product's queries, keys and values, `[tokens, heads + 2 * kv heads, head_dim]`: the queries, turned. Keys
    and values go to the cache."""
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
