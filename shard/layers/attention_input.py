"""Step between QKV linear and attention: QK norm, rotary embedding, and the write of keys and values to the cache."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType

from torch import Tensor

from shard.attention.kv_cache import KVCache
from shard.ops.norm import RMSNorm

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

    def __init__(self, fused_kernels: ModuleType, make_unfused: Callable[[], RotaryEmbedding], cos_sin_table: Tensor,
                 positions: Tensor, *, interleaved: bool) -> None:
        """`fused_kernels` is the module `shard.ops.fused_ops`; `make_unfused` is used for norms that its kernel does
        not support."""
        self._fused_kernels = fused_kernels
        self._make_unfused = make_unfused
        self._angles = fused_kernels.RotaryArguments(cos_sin_table, positions, interleaved)

    def __call__(self, x: Tensor) -> Tensor:
        return self._make_unfused()(x)

    def rotate_and_cache(self, qkv_heads: Tensor, qk_norm: QKNorm | None, cache: KVCache, layer: int,
                         slots: Tensor) -> Tensor:
        if isinstance(qk_norm, RMSNorm):
            fused_norm = self._fused_kernels.HeadNormArguments(qk_norm.weight, qk_norm.epsilon,
                                                               qk_norm.rounds_after_weight)
        elif qk_norm is not None:
            return super().rotate_and_cache(qkv_heads, qk_norm, cache, layer, slots)
        else:
            fused_norm = None
        cache_rows = self._fused_kernels.LayerCacheSlots(cache.keys[layer], cache.values[layer], slots)
        queries: Tensor = self._fused_kernels.rotate_and_cache(qkv_heads, fused_norm, self._angles, cache_rows)
        return queries
