"""What runs through the layers of a model, and what is yet to be added to it: the next norm does so on its way. Knows
nothing of who adds."""

from torch import Tensor

from shard.layers.norm import Norm


class Residual:
    def __init__(self, x: Tensor) -> None:
        """Sums stand in `x` afterwards."""
        self._x = x
        self._delta: Tensor | None = None  # yet to be added

    def add(self, delta: Tensor) -> None:
        self.whole()
        self._delta = delta

    def normed(self, norm: Norm) -> Tensor:
        delta, self._delta = self._delta, None
        return norm(self._x) if delta is None else norm.after(self._x, delta)

    def whole(self) -> Tensor:
        """As it is."""
        delta, self._delta = self._delta, None
        if delta is not None:
            self._x += delta
        return self._x
