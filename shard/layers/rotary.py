"""Rotary position embedding: pairs of a head's values are rotated by angles that depend on the position.

A value's partner is half a head away (GPT-NeoX style) or adjacent (GPT-J style). The cosines and sines of all positions
are in one table, computed at startup.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType

import torch
from torch import Tensor

from shard.attention.kv_cache import KVCache
from shard.ops.fused_support import import_fused_ops
from shard.ops.norm import RMSNorm
from shard.ops.rotary_arguments import HeadNormArguments, LayerCacheSlots, RotaryArguments

QKNorm = Callable[[Tensor], Tensor]  # [tokens, heads + kv heads, head_dim]


class RotaryEmbedding(ABC):
    """Rotary embedding for the positions of one step. It also applies the QK norm and writes keys and values to the
    cache, since a kernel may do all of it at once.
    """

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """`x: [tokens, heads, head_dim]`"""

    def rotate_and_cache(self, qkv_heads: Tensor, qk_norm: QKNorm | None, cache: KVCache, layer: int,
                         slots: Tensor) -> Tensor:
        """Norm and rotate queries and keys, write keys and values to the cache's `slots`, and return the queries.

        `qkv_heads: [tokens, heads + 2 * kv heads, head_dim]`: queries, keys and values.
        """
        num_heads = qkv_heads.shape[1] - cache.slot_width // qkv_heads.shape[2]  # query heads
        num_rotated = (qkv_heads.shape[1] + num_heads) // 2
        queries_and_keys = qkv_heads[:, :num_rotated]
        rotated = self(queries_and_keys if qk_norm is None else qk_norm(queries_and_keys))
        cache.write(layer, rotated[:, num_heads:].flatten(1), qkv_heads[:, num_rotated:].flatten(1), slots)
        return rotated[:, :num_heads]


class NoRotaryEmbedding(RotaryEmbedding):
    """No position embedding: queries and keys stay as they are."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


class FusedRotaryEmbedding(RotaryEmbedding):
    """Norm, rotary embedding and cache write in one kernel."""

    def __init__(self, fused_ops: ModuleType, make_unfused: Callable[[], RotaryEmbedding], cos_sin_table: Tensor,
                 positions: Tensor, *, interleaved: bool) -> None:
        """`fused_ops` is a module of `import_fused_ops`; `make_unfused` is used for what its kernel does not
        support."""
        self._fused_ops = fused_ops
        self.make_unfused = make_unfused
        self._angles = RotaryArguments(cos_sin_table, positions, interleaved)

    def __call__(self, x: Tensor) -> Tensor:
        return self.make_unfused()(x)

    def rotate_and_cache(self, qkv_heads: Tensor, qk_norm: QKNorm | None, cache: KVCache, layer: int,
                         slots: Tensor) -> Tensor:
        if (qk_norm is not None and not isinstance(qk_norm, RMSNorm)) or not self._fused_ops.can_rotate(qkv_heads):
            return super().rotate_and_cache(qkv_heads, qk_norm, cache, layer, slots)
        fused_norm = None if qk_norm is None else HeadNormArguments(
            qk_norm.kernel_weight, qk_norm.epsilon, qk_norm.rounds_after_weight)
        cache_rows = LayerCacheSlots(cache.keys[layer], cache.values[layer], slots)
        queries: Tensor = self._fused_ops.rotate_and_cache(qkv_heads, fused_norm, self._angles, cache_rows)
        return queries


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Rotary embedding of queries and keys. Options that a kind does not use keep their defaults."""

    rope_type: str
    theta: float
    scaling_factor: float = 1.0
    original_max_positions: int = 0  # context length before rope scaling
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # factor of cosines and sines
    rotated_fraction: float = 1.0  # fraction of a head's values, from the first on, that are rotated
    is_interleaved: bool = False  # whether a value's partner is the adjacent one, not half a head away
    frequency_divisors: tuple[float, ...] = ()  # by pair, the divisor of its frequency


def base_frequencies(theta: float, head_dim: int) -> Tensor:
    """Return radians per position, in float32 as in training: the rounding changes the angles of large positions."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def llama3_frequencies(config: RotaryConfig, head_dim: int) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and interpolate between them by their turns."""
    plain = base_frequencies(config.theta, head_dim)
    rotations = config.original_max_positions * plain / (2 * math.pi)  # within the original context
    low, high = config.low_frequency_factor, config.high_frequency_factor
    kept_share = ((rotations - low) / (high - low)).clamp(0, 1)
    return (1 - kept_share) * plain / config.scaling_factor + kept_share * plain


def yarn_frequencies(config: RotaryConfig, head_dim: int) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, with a linear ramp over the index of the pair between."""
    plain = base_frequencies(config.theta, head_dim)
    first, last = (pair_index_for_rotations(turns, config, head_dim) for turns in (config.beta_fast, config.beta_slow))
    if config.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp = (torch.arange(head_dim // 2) - first) / ((last - first) or 0.001)
    stretched = ramp.clamp(0, 1)
    return plain / config.scaling_factor * stretched + plain * (1 - stretched)


def pair_index_for_rotations(rotations: float, config: RotaryConfig, head_dim: int) -> float:
    """Return the fractional index of the pair that makes `rotations` turns within the original context."""
    return head_dim * math.log(config.original_max_positions / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))


FREQUENCIES_BY_ROPE_TYPE: dict[str, Callable[[RotaryConfig, int], Tensor]] = {
    "default": lambda config, head_dim: base_frequencies(config.theta, head_dim),
    "linear": lambda config, head_dim: base_frequencies(config.theta, head_dim) / config.scaling_factor,
    # scales only beyond the trained length, and longer sequences are not served
    "dynamic": lambda config, head_dim: base_frequencies(config.theta, head_dim),
    "llama3": llama3_frequencies,
    "yarn": yarn_frequencies,
    # divides the frequency of every pair by a factor of its own
    "longrope": lambda config, head_dim: base_frequencies(config.theta, head_dim) / torch.tensor(
        config.frequency_divisors),
}


class UnfusedRotaryEmbedding(RotaryEmbedding):
    """Rotation by torch's operations, of only the first values of a head if there are fewer angles."""

    def __init__(self, cosines: Tensor, sines: Tensor, *, interleaved: bool) -> None:
        """`cosines, sines: [tokens, 1, num_rotated / 2]`. `interleaved`: a value's partner is the adjacent one, not
        half a head away."""
        self._interleaved = interleaved
        self._num_rotated = 2 * cosines.shape[-1]
        if interleaved:
            self._cosines = cosines.repeat_interleave(2, -1)
            self._sines = torch.stack([-sines, sines], dim=-1).flatten(-2)
        else:
            self._cosines, self._sines = torch.cat([cosines, cosines], dim=-1), torch.cat([-sines, sines], dim=-1)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[-1] > self._num_rotated:
            return torch.cat([self(x[..., :self._num_rotated]), x[..., self._num_rotated:]], dim=-1)
        wide = x.float()
        partners = (wide.view(*wide.shape[:-1], -1, 2).flip(-1).flatten(-2) if self._interleaved
                    else wide.roll(self._num_rotated // 2, -1))
        return (wide * self._cosines).addcmul_(partners, self._sines).to(x.dtype)


class RotaryTable:
    """Cosines and sines of all positions; makes the rotary embedding for the positions of a step."""

    def __init__(self, config: RotaryConfig, head_dim: int, max_positions: int, device: torch.device) -> None:
        num_rotated = int(config.rotated_fraction * head_dim)
        if num_rotated % 2:
            raise ValueError(f"{num_rotated} of a head's {head_dim} values are to be rotated, which is an odd number")
        self._is_interleaved = config.is_interleaved
        frequencies = FREQUENCIES_BY_ROPE_TYPE[config.rope_type](config, num_rotated)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        # float64: docs/concepts/exactness.md, "The same bits at any index"
        cos_sin = torch.cat([angles.double().cos(), angles.double().sin()], dim=-1) * config.attention_factor
        self.cos_sin_table = cos_sin.float().to(device)  # [positions, num_rotated]: cosines, then sines
        self._fused_ops = import_fused_ops(device)

    def select_positions(self, positions: Tensor) -> RotaryEmbedding:
        if self._fused_ops is not None:
            return FusedRotaryEmbedding(self._fused_ops, cache(partial(self._select_unfused, positions)),
                                        self.cos_sin_table, positions, interleaved=self._is_interleaved)
        return self._select_unfused(positions)

    def _select_unfused(self, positions: Tensor) -> RotaryEmbedding:
        cosines, sines = self.cos_sin_table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        return UnfusedRotaryEmbedding(cosines, sines, interleaved=self._is_interleaved)
