"""How queries, keys and values go from a product into attention: turned by their positions, keys and values into the
cache. Knows nothing of how a position turns, nor of what attention makes of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType

from torch import Tensor

from shard.cache import Cache
from shard.layers.norm import RMSNorm

HeadNorm = Callable[[Tensor], Tensor]  # [tokens, heads + kv heads, head_dim]


class Turn(ABC):
    """What a step's positions do to queries and keys."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """`x: [tokens, heads, head_dim]`"""

    def enter(self, heads: Tensor, head_norm: HeadNorm | None, cache: Cache, layer: int, slots: Tensor) -> Tensor:
        """`heads: [tokens, heads + 2 * kv heads, head_dim]`, the queries, the keys and the values; the first two are
        normed, if they are to be, and turned. Returns the queries; the others go to the cache's `slots`."""
        num_heads = heads.shape[1] - cache.width // heads.shape[2]  # that are queries
        num_turned = (heads.shape[1] + num_heads) // 2
        asked = heads[:, :num_turned]
        turned = self(asked if head_norm is None else head_norm(asked))
        cache.write(layer, turned[:, num_heads:].flatten(1), heads[:, num_turned:].flatten(1), slots)
        return turned[:, :num_heads]


class NoTurn(Turn):
    """For models whose queries and keys do not depend on positions."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


class FusedTurn(Turn):
    """All of it in one kernel."""

    def __init__(self, fused: ModuleType, plain: Callable[[], Turn], table: Tensor, positions: Tensor, *,
                 neighbours: bool) -> None:
        """`fused` is `fused.py`; `plain` is for norms that its kernel does not know."""
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
