"""Residual stream with one deferred addition, so that the next norm can fuse add and norm."""

from torch import Tensor

from shard.ops.norm import Norm


class ResidualStream:
    """Hidden states between layers, with the last layer's output not added yet."""

    def __init__(self, x: Tensor) -> None:
        """`x` is modified in place by every addition."""
        self._stream = x
        self._pending_delta: Tensor | None = None  # yet to be added

    def add_deferred(self, delta: Tensor) -> None:
        self.apply_pending()
        self._pending_delta = delta

    def apply_pending_and_norm(self, norm: Norm) -> Tensor:
        delta, self._pending_delta = self._pending_delta, None
        return norm(self._stream) if delta is None else norm.add_and_norm(self._stream, delta)

    def apply_pending(self) -> Tensor:
        """Apply the deferred addition and return the stream."""
        delta, self._pending_delta = self._pending_delta, None
        if delta is not None:
            self._stream += delta
        return self._stream
