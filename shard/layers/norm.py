"""Norms over the last axis: by the root mean square, or by mean and variance. Row by row, and computed in float32."""

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
        return self._scaled(x).to(x.dtype).mul_(self._weight)

    def _scaled(self, x: Tensor) -> Tensor:
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, length, length, value=self._share).rsqrt_()
        return wide * scale


class WideRMSNorm(RMSNorm):
    """Rounds after the weight, which is in float32, has been multiplied with."""

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [..., width]`"""
        return self._scaled(x).mul_(self._weight).to(x.dtype)


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
