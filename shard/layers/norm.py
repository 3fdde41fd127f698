"""Norms over the last axis. Row by row, and computed in float32."""

import torch
from torch import Tensor
from torch.nn import functional


class RMSNorm:
    def __init__(self, weight: Tensor, epsilon: float) -> None:
        """`weight: [..., width]`"""
        self._weight = weight
        self._share = 1 / weight.shape[-1]
        self._epsilon = torch.tensor(epsilon, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [..., width]`"""
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, length, length, value=self._share).rsqrt_()
        return (wide * scale).to(x.dtype).mul_(self._weight)


class LayerNorm:
    """Moves the mean to 0 before it scales."""

    def __init__(self, weight: Tensor, epsilon: float, bias: Tensor | None = None) -> None:
        """`weight, bias: [width]`"""
        self._weight = weight
        self._epsilon = epsilon
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [..., width]`"""
        return functional.layer_norm(x, self._weight.shape, self._weight, self._bias, self._epsilon)
