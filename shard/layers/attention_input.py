"""Step between QKV linear and attention: QK norm, rotary embedding, and the write of keys and values to the cache."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType

from torch import Tensor

from shard.attention.kv_cache import Cache
from shard.ops.norm import RMSNorm

HeadNorm = Callable[[Tensor], Tensor]  # [tokens, heads + kv heads, head_dim]


class Turn(ABC):
    """Position embedding of queries and keys for the positions of one step."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """`x: [tokens, heads, head_dim]`"""

    def enter(self, heads: Tensor, head_norm: HeadNorm | None, cache: Cache, layer: int, slots: Tensor) -> Tensor:
        """Norm and rotate queries and keys, write keys and values to the cache's `slots`, and return the queries.

        `heads: [tokens, heads + 2 * kv heads, head_dim]`: queries, keys and values.
        """
        num_heads = heads.shape[1] - cache.width // heads.shape[2]  # query heads
        num_turned = (heads.shape[1] + num_heads) // 2
        asked = heads[:, :num_turned]
        turned = self(asked if head_norm is None else head_norm(asked))
        cache.write(layer, turned[:, num_heads:].flatten(1), heads[:, num_turned:].flatten(1), slots)
        return turned[:, :num_heads]


class NoTurn(Turn):
    """No position embedding: queries and keys stay as they are."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


class FusedTurn(Turn):
    """Norm, rotary embedding and cache write in one kernel."""

    def __init__(self, fused: ModuleType, plain: Callable[[], Turn], table: Tensor, positions: Tensor, *,
                 neighbours: bool) -> None:
        """`fused` is the module `ops/fused.py`; `plain` is used for norms that its kernel does not support."""
        self._fused = fused
        self._plain = plain
        self._angles = fused.Angles(table, positions, neighbours)

    def __call__(self, x: Tensor) -> Tensor:
        return self._plain()(x)

    def enter(self, heads: Tensor, head_norm: HeadNorm | None, cache: Cache, layer: int, slots: Tensor) -> Tensor:
        if isinstance(head_norm, RMSNorm):
            known = self._fused.HeadNorm(head_norm.weight, head_norm.epsilon, head_norm.is_wide)
        elif head_norm is not None:
            return super().enter(heads, head_norm, cache, layer, slots)
        else:
            known = None
        rows = self._fused.Rows(cache.keys[layer], cache.values[layer], slots)
        queries: Tensor = self._fused.enter(heads, known, self._angles, rows)
        return queries
