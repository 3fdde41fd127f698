"""Linears of one rank. On CPUs that support it the weight is packed once.

With a packed weight a row's bits do not depend on other rows, as long as no more rows are multiplied at once than
`most_rows` allows, which a short trial determines.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Linear = Callable[[Tensor], Tensor]  # [rows, in] -> [rows, out]


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Return whether this build of torch can pack weights of `dtype` on this processor.

    The operators are private to torch, so a later version may lack them.
    """
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


FEW_ROWS = 32


class Trial(NamedTuple):
    shapes: tuple[tuple[int, int], ...]  # [out, in] of weights
    rows: tuple[int, ...]


# With AVX but without AVX2, large float32 products use another kernel; with wide weights, from 267 rows on.
FLOAT32_TRIAL = Trial(((1024, 896),), (33, 600))
# With AMX 32 rows are multiplied at once. With more rows a bfloat16 product is summed in another order.
TRIAL = Trial(((4864, 896), (2048, 2048)), (33, 48, 300))


@cache
def most_rows(dtype: torch.dtype) -> int | None:
    """Return how many rows a packed product may have for each row to get the same bits as in a product of two rows;
    None: any number."""
    trial = FLOAT32_TRIAL if dtype == torch.float32 else TRIAL
    return None if all(is_steady(dtype, *shape, trial.rows) for shape in trial.shapes) else FEW_ROWS


def is_steady(dtype: torch.dtype, outputs: int, inputs: int, counts: tuple[int, ...]) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(count, inputs, generator=generator).to(dtype) for count in (outputs, max(counts)))
    packed = pack(weight)

    def product(x: Tensor) -> Tensor:
        made: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")
        return made

    first, last = product(rows[:2]), {count: product(rows[count - 2:count]) for count in counts}
    made = {count: product(rows[:count]) for count in counts}
    return all(torch.equal(made[count][:2], first) and torch.equal(made[count][-2:], last[count]) for count in made)


def exactly(product: Linear, x: Tensor) -> Tensor:
    """Apply `product` to at most `most_rows` rows at once, and to a single row as two, since oneDNN may compute one
    row with another kernel."""
    most = most_rows(x.dtype)
    if len(x) == 1:
        return product(x.repeat(2, 1))[:1]
    if most is None or len(x) <= most:
        return product(x)
    return torch.cat([exactly(product, piece) for piece in torch.split(x, most)])


class PackedLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` is copied, so the caller may free it."""
        self._weight = pack(weight)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        return exactly(self._multiply, x)

    def _multiply(self, x: Tensor) -> Tensor:
        product: Tensor = self._product(x, self._weight, self._bias, "none", [], "")
        return product


class PlainLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Return a linear with `weight: [out, in]`, packed where the device supports it."""
    return PackedLinear(weight, bias) if packs(weight.dtype, weight.device) else PlainLinear(weight, bias)
