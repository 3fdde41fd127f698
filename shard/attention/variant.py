"""Options of a model's attention: scale, logit soft-capping and sliding windows."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    scale: float | None = None  # factor of the scores; None: one over the square root of head_dim
    softcap: float = 0.0  # soft limit of the scores; 0: none
    windows: Sequence[int] = ()  # by layer: positions that a token attends to, its own included, 0: all; empty: all

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    @property
    def kinds(self) -> list[int]:
        """Distinct window sizes."""
        return sorted(set(self.windows)) or [0]

    def scaling(self, head_dim: int) -> float:
        return head_dim ** -0.5 if self.scale is None else self.scale


PLAIN = Variant()
