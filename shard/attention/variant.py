"""What a model's attention does beyond the usual. Knows nothing of how it is computed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    scale: float | None = None  # of queries times keys; None: one over the root of head_dim
    softcap: float = 0.0  # what such products come near to at most, 0: no bound
    windows: Sequence[int] = ()  # by layer, how many places a token sees, its own among them, 0: all; empty: all

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    @property
    def kinds(self) -> list[int]:
        """Of windows, each once."""
        return sorted(set(self.windows)) or [0]

    def scaling(self, head_dim: int) -> float:
        return head_dim ** -0.5 if self.scale is None else self.scale


PLAIN = Variant()
