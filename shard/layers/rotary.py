"""Rotary position embedding: pairs of a head's values are rotated by angles that depend on the position.

A value's partner is half a head away (GPT-NeoX style) or adjacent (GPT-J style). The cosines and sines of all positions
are in one table, computed at startup.
"""

import math
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from shard.layers.attention_input import FusedTurn, Turn
from shard.models.config import Rotary
from shard.ops.triton_support import kernels


def plain_frequencies(theta: float, head_dim: int) -> Tensor:
    """Return radians per position, in float32 as in training: the rounding changes the angles of large positions."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def linear(rotary: Rotary, head_dim: int) -> Tensor:
    return plain_frequencies(rotary.theta, head_dim) / rotary.factor


def unscaled(rotary: Rotary, head_dim: int) -> Tensor:
    return plain_frequencies(rotary.theta, head_dim)


def llama3(rotary: Rotary, head_dim: int) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and interpolate between them by their turns."""
    plain = plain_frequencies(rotary.theta, head_dim)
    turns = rotary.original_positions * plain / (2 * math.pi)  # within the original context
    low, high = rotary.low_frequency_factor, rotary.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / rotary.factor + kept * plain


def yarn(rotary: Rotary, head_dim: int) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, with a linear ramp over the index of the pair between."""
    plain = plain_frequencies(rotary.theta, head_dim)
    first, last = (pair_of(turns, rotary, head_dim) for turns in (rotary.beta_fast, rotary.beta_slow))
    if rotary.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp = (torch.arange(head_dim // 2) - first) / ((last - first) or 0.001)
    stretched = ramp.clamp(0, 1)
    return plain / rotary.factor * stretched + plain * (1 - stretched)


def longrope(rotary: Rotary, head_dim: int) -> Tensor:
    """Divide the frequency of every pair by a factor of its own."""
    return plain_frequencies(rotary.theta, head_dim) / torch.tensor(rotary.factors)


def pair_of(turns: float, rotary: Rotary, head_dim: int) -> float:
    """Return the fractional index of the pair that makes `turns` turns within the original context."""
    return head_dim * math.log(rotary.original_positions / (turns * 2 * math.pi)) / (2 * math.log(rotary.theta))


FREQUENCIES: dict[str, Callable[[Rotary, int], Tensor]] = {
    "default": unscaled,
    "linear": linear,
    "dynamic": unscaled,  # scales only beyond the trained length, and longer sequences are not served
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
}


class HalfTurn(Turn):
    def __init__(self, cosines: Tensor, sines: Tensor) -> None:
        """`cosines, sines: [tokens, 1, head_dim]`, the first half of the sines negative"""
        self._cosines = cosines
        self._sines = sines
        self._half = cosines.shape[-1] // 2

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        partners = wide.roll(self._half, -1)
        return (wide * self._cosines).addcmul_(partners, self._sines).to(x.dtype)


class NeighbourTurn(Turn):
    """Rotation in which a value's partner is the adjacent one."""

    def __init__(self, cosines: Tensor, sines: Tensor) -> None:
        """`cosines, sines: [tokens, 1, head_dim]`, every other sine negative, from the first on"""
        self._cosines = cosines
        self._sines = sines

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        partners = wide.view(*wide.shape[:-1], -1, 2).flip(-1).flatten(-2)
        return (wide * self._cosines).addcmul_(partners, self._sines).to(x.dtype)


class PartialTurn(Turn):
    """Rotation of only the first values of a head."""

    def __init__(self, turn: Turn, num_turned: int) -> None:
        self._turn = turn
        self._num_turned = num_turned

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([self._turn(x[..., :self._num_turned]), x[..., self._num_turned:]], dim=-1)


class RotaryTable:
    def __init__(self, rotary: Rotary, head_dim: int, max_positions: int, device: torch.device) -> None:
        num_turned = int(rotary.share * head_dim)
        self._num_turned = None if num_turned == head_dim else num_turned
        self._neighbours = rotary.neighbours
        frequencies = FREQUENCIES[rotary.kind](rotary, num_turned)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        # float64, since a float32 cosine may depend on the angle's index in the tensor
        turned = torch.cat([angles.double().cos(), angles.double().sin()], dim=-1) * rotary.amplitude
        self.table = turned.float().to(device)  # [positions, num_turned]: cosines, then sines
        self._fused = kernels(device)

    def at(self, positions: Tensor) -> Turn:
        if self._fused is not None:
            return FusedTurn(self._fused, cache(partial(self._at, positions)), self.table, positions,
                             neighbours=self._neighbours)
        return self._at(positions)

    def _at(self, positions: Tensor) -> Turn:
        cosines, sines = self.table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        turn: Turn
        if self._neighbours:
            turn = NeighbourTurn(cosines.repeat_interleave(2, -1), torch.stack([-sines, sines], dim=-1).flatten(-2))
        else:
            turn = HalfTurn(torch.cat([cosines, cosines], dim=-1), torch.cat([-sines, sines], dim=-1))
        return turn if self._num_turned is None else PartialTurn(turn, self._num_turned)
