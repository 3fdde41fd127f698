"""RMS norm and layer norm over the last axis, computed in float32."""

import torch
from torch import Tensor
from torch.nn import functional

from shard.ops.triton_support import kernels


class RMSNorm:
    is_wide = False  # whether to round after multiplying by the weight, not before

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        """`weight: [..., width]`"""
        self.weight = weight
        self.epsilon = epsilon
        self._share = 1 / weight.shape[-1]
        self._added = torch.tensor(epsilon, device=weight.device)
        self._fused = kernels(weight.device) if weight.ndim == 1 else None  # norms of heads: attention_input.py

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [..., width]`"""
        if self._fused is not None:
            return self._by_kernel(x, None)
        return self._weighted(self._scaled(x), x.dtype)

    def after(self, x: Tensor, delta: Tensor) -> Tensor:
        """Add `delta` to `x` in place and return the norm of the sum."""
        if self._fused is not None:
            return self._by_kernel(x, delta)
        x += delta
        return self(x)

    def _by_kernel(self, x: Tensor, delta: Tensor | None) -> Tensor:
        assert self._fused is not None
        found: Tensor = self._fused.norm(x, self.weight, self.epsilon, wide=self.is_wide, delta=delta)
        return found

    def _scaled(self, x: Tensor) -> Tensor:
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._added, length, length, value=self._share).rsqrt_()
        return wide * scale

    def _weighted(self, scaled: Tensor, dtype: torch.dtype) -> Tensor:
        return scaled.to(dtype).mul_(self.weight)


class WideRMSNorm(RMSNorm):
    """RMS norm with a float32 weight, rounded after multiplying by it."""

    is_wide = True

    def _weighted(self, scaled: Tensor, dtype: torch.dtype) -> Tensor:
        return scaled.mul_(self.weight).to(dtype)


class LayerNorm:
    def __init__(self, weight: Tensor, epsilon: float, bias: Tensor | None = None) -> None:
        """`weight, bias: [..., width]`"""
        self._weight = weight.float()
        self._bias = None if bias is None else bias.float()
        self._width = weight.shape[-1:]
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [..., width]`"""
        wide = functional.layer_norm(x.float(), self._width, eps=self._epsilon).mul_(self._weight)
        return (wide if self._bias is None else wide.add_(self._bias)).to(x.dtype)

    def after(self, x: Tensor, delta: Tensor) -> Tensor:
        """Add `delta` to `x` in place and return the norm of the sum."""
        x += delta
        return self(x)


Norm = RMSNorm | LayerNorm
