"""Arguments of the kernels that norm and rotate queries and keys and write the cache, on GPUs and on CPUs."""

from typing import NamedTuple

from torch import Tensor


class HeadNormArguments(NamedTuple):
    """Norm of every head by itself."""

    weight: Tensor  # [heads + kv heads, head_dim]
    epsilon: float
    round_after_weight: bool


class RotaryArguments(NamedTuple):
    """Rotary embedding of a step's positions."""

    cos_sin_table: Tensor  # [positions, num_rotated]: cosines, then sines
    positions: Tensor  # [tokens]
    interleaved: bool  # whether a value's partner is adjacent, not half a head away


class LayerCacheSlots(NamedTuple):
    """Cache of one layer, and the slots that a step writes."""

    keys: Tensor  # [slots, kv heads * head_dim]
    values: Tensor  # [slots, kv heads * head_dim]
    slots: Tensor  # [tokens], slot of each token of the step
