"""Linear followed by GELU. With `exact_gelu` or a packed linear, GELU keeps a row's bits independent of other rows.

torch's `gelu` does not guarantee that, for the reason given in `gated_activations.py`. A packed linear has GELU fused
into it.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from shard.ops.linear import Linear, exactly, make_linear, pack


class ActivatedLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
        """`approximate` is none or tanh, as in torch."""
        self._linear = make_linear(weight, bias)
        self._approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return functional.gelu(self._linear(x), approximate=self._approximate)


def exact_gelu(x: Tensor, approximate: str) -> Tensor:
    """Compute GELU in float32, by operations that give a number the same bits at any index of a tensor."""
    if approximate == "tanh":  # as in gated_activations.py
        bent = (x * x).mul_(0.044715).add_(1).mul_(x).mul_(-2 * math.sqrt(2 / math.pi))
        return x / bent.exp_().add_(1)
    return (x * math.sqrt(0.5)).erf_().add_(1).mul_(x).mul_(0.5)


class SeparatelyActivatedLinear:
    """Linear with separate GELU, so that an adapter's update can be added before the activation."""

    def __init__(self, linear: Linear, approximate: str) -> None:
        self._linear = linear
        self._approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return exact_gelu(self._linear(x).float(), self._approximate).to(x.dtype)


class PackedActivatedLinear:
    """Packed linear with fused GELU, which is computed in float32 before the result is rounded."""

    def __init__(self, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
        """`weight` is copied, so the caller may free it."""
        self._weight = pack(weight)
        self._bias = bias
        self._approximate = approximate
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        return exactly(self._multiply, x)

    def _multiply(self, x: Tensor) -> Tensor:
        product: Tensor = self._product(x, self._weight, self._bias, "gelu", [], self._approximate)
        return product
