"""Options of a model's attention: scale, logit soft-capping and sliding windows."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Options of a model's attention that every backend applies: scale, soft-capping, sliding windows. The choice of
    backend is not part of it.
    """

    scale: float | None = None  # factor of the scores; None: one over the square root of head_dim
    softcap: float = 0.0  # soft limit of the scores; 0: none
    # by layer: positions that a token attends to, its own included, 0: all; empty: all
    sliding_windows: Sequence[int] = ()

    def window_of_layer(self, layer: int) -> int:
        return self.sliding_windows[layer] if self.sliding_windows else 0

    @property
    def window_sizes(self) -> list[int]:
        """Distinct window sizes."""
        return sorted(set(self.sliding_windows)) or [0]

    def compute_score_scale(self, head_dim: int) -> float:
        return head_dim ** -0.5 if self.scale is None else self.scale


DEFAULT_ATTENTION_CONFIG = AttentionConfig()
