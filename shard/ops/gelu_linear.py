"""Linear followed by GELU: torch's, or `batch_invariant_gelu`, or fused into a packed linear. The latter two follow
docs/exactness.md, "The same bits at any index".
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from shard.ops.linear import Linear, apply_row_exact, make_linear, pack_weight


class GeluLinear:
    """Linear followed by torch's GELU."""

    def __init__(self, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
        """`approximate` is none or tanh, as in torch."""
        self._linear = make_linear(weight, bias)
        self._approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return functional.gelu(self._linear(x), approximate=self._approximate)


def batch_invariant_gelu(x: Tensor, approximate: str) -> Tensor:
    """Compute GELU of float32 numbers."""
    if approximate == "tanh":  # as in gated_activations.py
        exponent = (x * x).mul_(0.044715).add_(1).mul_(x).mul_(-2 * math.sqrt(2 / math.pi))
        return x / exponent.exp_().add_(1)
    return (x * math.sqrt(0.5)).erf_().add_(1).mul_(x).mul_(0.5)


class ExactGeluLinear:
    """Linear with separate GELU, so that an adapter's update can be added before the activation."""

    def __init__(self, linear: Linear, approximate: str) -> None:
        self._linear = linear
        self._approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return batch_invariant_gelu(self._linear(x).float(), self._approximate).to(x.dtype)


class PackedGeluLinear:
    """Packed linear with fused GELU, which is computed in float32 before the result is rounded."""

    def __init__(self, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
        """`weight` is copied, so the caller may free it."""
        self._weight = pack_weight(weight)
        self._bias = bias
        self._approximate = approximate
        self._mkldnn_linear = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        return apply_row_exact(self._multiply_with_gelu, x)

    def _multiply_with_gelu(self, x: Tensor) -> Tensor:
        result: Tensor = self._mkldnn_linear(x, self._weight, self._bias, "gelu", [], self._approximate)
        return result
