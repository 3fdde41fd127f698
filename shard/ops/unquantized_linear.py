"""Unquantized linears of one rank. On CPUs that support it the weight is packed once, and `apply_row_exact` multiplies
it by docs/concepts/exactness.md, "Products with independent rows".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from shard.ops.native_linear import make_native_linear
from shard.state.step import MIN_ROWS

Linear = Callable[[Tensor], Tensor]  # [rows, in] -> [rows, out]


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Return whether this build of torch can pack weights of `dtype` on this processor.

    The operators are private to torch, so a later version may lack them.
    """
    try:
        pack_weight(torch.zeros(16, 16, dtype=dtype))
    except (AttributeError, RuntimeError):
        return False
    return True


def should_pack(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and can_pack(dtype)


def pack_weight(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


SAFE_MAX_ROWS = 32
PROBE_ROW_COUNTS = 8, 64  # of a decode step, which reads weights, and of a chunk of a prompt, which multiplies
PROBE_WEIGHT_SHAPE = (16384, 1024)  # larger than the private cache of a core


# Products with which `has_independent_rows` is tried: [out, in] of weights, and numbers of rows.
# With AVX but without AVX2, large float32 products use another kernel; with wide weights, from 267 rows on.
FLOAT32_TRIAL = ((1024, 896),), (33, 600)
# With AMX 32 rows are multiplied at once. With more rows a bfloat16 product is summed in another order.
DEFAULT_TRIAL = ((4864, 896), (2048, 2048)), (33, 48, 300)


@cache
def find_max_exact_rows(dtype: torch.dtype) -> int | None:
    """Return how many rows a packed product may have for each row to get the same bits as in a product of two rows;
    None: any number. A short trial determines it."""
    weight_shapes, row_counts = FLOAT32_TRIAL if dtype == torch.float32 else DEFAULT_TRIAL
    return (None if all(has_independent_rows(dtype, *shape, row_counts) for shape in weight_shapes)
            else SAFE_MAX_ROWS)


def has_independent_rows(dtype: torch.dtype, num_outputs: int, num_inputs: int, row_counts: tuple[int, ...]) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(count, num_inputs, generator=generator).to(dtype)
                    for count in (num_outputs, max(row_counts)))
    multiply = PackedLinear(weight, None).multiply
    first, last = multiply(rows[:2]), {count: multiply(rows[count - 2:count]) for count in row_counts}
    results = {count: multiply(rows[:count]) for count in row_counts}
    return all(torch.equal(results[count][:2], first) and torch.equal(results[count][-2:], last[count])
               for count in results)


def apply_row_exact(linear: Linear, x: Tensor) -> Tensor:
    """Apply `linear` to at most `find_max_exact_rows` rows at once: docs/concepts/exactness.md, "Products with
    independent rows" and "A single row is computed as two"."""
    max_rows = find_max_exact_rows(x.dtype)
    if len(x) == 1:
        return apply_to_repeated_row(linear, x)
    if max_rows is None or len(x) <= max_rows:
        return linear(x)
    return torch.cat([apply_row_exact(linear, piece) for piece in torch.split(x, max_rows)])


def apply_to_repeated_row(linear: Linear, x: Tensor) -> Tensor:
    """Apply `linear` to a single row as if there were more: docs/concepts/exactness.md, "A single row is computed as
    two"."""
    return linear(x.repeat(MIN_ROWS, 1))[:1]


class PackedLinear:
    """Linear with a weight packed by oneDNN, whose rows have the same bits in any batch."""

    def __init__(self, weight: Tensor, bias: Tensor | None, onednn_activation: tuple[str, str] = ("none", "")) -> None:
        """`weight` is copied, so the caller may free it. `onednn_activation`: fused operation and its algorithm,
        computed in float32 before the result is rounded."""
        self.weight = pack_weight(weight)
        self._bias = bias
        self._activation, self._algorithm = onednn_activation
        self._mkldnn_linear = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        return apply_row_exact(self.multiply, x)

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply all rows at once, so that their bits may depend on how many there are."""
        result: Tensor = self._mkldnn_linear(x, self.weight, self._bias, self._activation, [], self._algorithm)
        return result


@dataclass(eq=False, slots=True)
class PlainLinear:
    """Linear by torch.nn.functional.linear."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def make_matmul_benchmark(dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    """Return a function that computes products of a few and of many rows, by which number types are compared."""
    linear = make_linear(torch.full(PROBE_WEIGHT_SHAPE, 0.5, dtype=dtype))  # a value that 16 bits hold
    inputs = [torch.full((count, PROBE_WEIGHT_SHAPE[1]), 0.5, dtype=dtype) for count in PROBE_ROW_COUNTS]
    return lambda: list(map(linear, inputs))


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Return a linear with `weight: [out, in]`, packed where the device supports it."""
    native_linear = make_native_linear(weight, bias)
    if native_linear is not None:
        return native_linear
    return PackedLinear(weight, bias) if should_pack(weight.dtype, weight.device) else PlainLinear(weight, bias)
