"""RMS norm and layer norm over the last axis, computed in float32, and the residual stream that they read."""

import torch
from torch import Tensor
from torch.nn import functional

from shard.ops.fused_support import import_fused_ops


class RMSNorm:
    """RMS norm, rounded before multiplying by the weight."""

    rounds_after_weight = False  # whether to round after multiplying by the weight, not before

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        """`weight: [..., width]`"""
        self.weight = weight
        self.epsilon = epsilon
        self._inverse_width = 1 / weight.shape[-1]
        self._epsilon_tensor = torch.tensor(epsilon, device=weight.device)
        # norms of heads: `FusedRotaryEmbedding`
        self._fused_ops = import_fused_ops(weight.device) if weight.ndim == 1 else None
        self.kernel_weight = weight.float() if weight.device.type == "cpu" else weight  # as fused operations take it

    def __call__(self, x: Tensor, delta: Tensor | None = None) -> Tensor:
        """Return the norm of `x: [..., width]`, to which a `delta` is added in place first."""
        if self._fused_ops is not None and self._fused_ops.can_norm(x):
            normed: Tensor = self._fused_ops.rms_norm(x, self.kernel_weight, self.epsilon,
                                                      round_after_weight=self.rounds_after_weight, delta=delta)
            return normed
        if delta is not None:
            x += delta
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon_tensor, length, length, value=self._inverse_width).rsqrt_()
        normalized = wide * scale
        return (normalized.mul_(self.weight).to(x.dtype) if self.rounds_after_weight
                else normalized.to(x.dtype).mul_(self.weight))


class Fp32WeightRMSNorm(RMSNorm):
    """RMS norm with a float32 weight, rounded after multiplying by it."""

    rounds_after_weight = True


class LayerNorm:
    """Layer norm with an optional bias."""

    def __init__(self, weight: Tensor, epsilon: float, bias: Tensor | None = None) -> None:
        """`weight, bias: [..., width]`"""
        self._weight = weight.float()
        self._bias = None if bias is None else bias.float()
        self._width = weight.shape[-1:]
        self._epsilon = epsilon

    def __call__(self, x: Tensor, delta: Tensor | None = None) -> Tensor:
        """Return the norm of `x: [..., width]`, to which a `delta` is added in place first."""
        if delta is not None:
            x += delta
        wide = functional.layer_norm(x.float(), self._width, eps=self._epsilon).mul_(self._weight)
        return (wide if self._bias is None else wide.add_(self._bias)).to(x.dtype)


Norm = RMSNorm | LayerNorm


class ResidualStream:
    """Hidden states between layers, with the last layer's output not added yet, so that the next norm can fuse both.
    """

    def __init__(self, x: Tensor) -> None:
        """`x` is modified in place by every addition."""
        self._stream = x
        self._pending_delta: Tensor | None = None  # yet to be added

    def add_deferred(self, delta: Tensor) -> None:
        self.apply_pending()
        self._pending_delta = delta

    def apply_pending_and_norm(self, norm: Norm) -> Tensor:
        delta, self._pending_delta = self._pending_delta, None
        return norm(self._stream, delta)

    def apply_pending(self) -> Tensor:
        """Apply the deferred addition and return the stream."""
        delta, self._pending_delta = self._pending_delta, None
        if delta is not None:
            self._stream += delta
        return self._stream
