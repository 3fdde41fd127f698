"""Residual stream with one deferred addition, so that the next norm can fuse add and norm."""

from torch import Tensor

from shard.ops.norm import Norm


class Residual:
    def __init__(self, x: Tensor) -> None:
        """`x` is modified in place by every addition."""
        self._x = x
        self._delta: Tensor | None = None  # yet to be added

    def add(self, delta: Tensor) -> None:
        self.whole()
        self._delta = delta

    def normed(self, norm: Norm) -> Tensor:
        delta, self._delta = self._delta, None
        return norm(self._x) if delta is None else norm.after(self._x, delta)

    def whole(self) -> Tensor:
        """Apply the deferred addition and return the stream."""
        delta, self._delta = self._delta, None
        if delta is not None:
            self._x += delta
        return self._x
