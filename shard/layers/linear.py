"""Products with a weight. On a CPU that can, the weight is packed once, and then a row's bits do not depend on others.

Knows nothing of ranks, nor of what a product is for.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

Linear = Callable[[Tensor], Tensor]  # [rows, in] -> [rows, out]


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch packs weights of this type on this processor: the operators are torch's own affair,
    and may go."""
    try:
        pack(torch.zeros(16, 16, dtype=dtype))
    except (AttributeError, RuntimeError):
        return False
    return True


def packs(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and can_pack(dtype)


def pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


class PackedLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` is copied, and may be forgotten."""
        self._weight = pack(weight)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == 1:  # alone, a row may be computed in another way
            return self(x.repeat(2, 1))[:1]
        product: Tensor = self._product(x, self._weight, self._bias, "none", [], "")
        return product


class PlainLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """`weight: [out, in]`"""
    return PackedLinear(weight, bias) if packs(weight.dtype, weight.device) else PlainLinear(weight, bias)
