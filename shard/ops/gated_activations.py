"""Gated linear: activation(x · gate) times x · up. Exact and packed variants keep a row's bits independent of others.

torch's `silu` does not guarantee that: how it splits the elements into threads and vectors depends on the number of
rows, and the ends of a split are computed by other instructions.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shard.ops.linear import Linear, exactly, pack

Activation = Callable[[Tensor, Tensor], Tensor]


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate).mul_(up)


def exact_silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """Compute silu(gate) * up by operations that give a number the same bits at any index of a tensor.

    For float32 only: smaller types would be rounded in between.
    """
    return (gate * up).div_(gate.neg().exp_().add_(1))


def gelu_tanh_times(gate: Tensor, up: Tensor) -> Tensor:
    return functional.gelu(gate, approximate="tanh").mul_(up)


def exact_gelu_tanh_times(gate: Tensor, up: Tensor) -> Tensor:
    """Compute gelu(gate) * up like silu: with tanh, gelu is x times the sigmoid of 2 * sqrt(2 / pi) * (x + 0.044715 *
    x^3)."""
    bent = (gate * gate).mul_(0.044715).add_(1).mul_(gate).mul_(-2 * math.sqrt(2 / math.pi))
    return (gate * up).div_(bent.exp_().add_(1))


class Gating(NamedTuple):
    """Implementations of one activation."""

    plain: Activation  # torch's own; bits may depend on other rows
    exact: Activation  # for float32
    on_the_way: tuple[str, str]  # oneDNN's operation fused into a packed linear, and its algorithm


GATINGS = {  # by their names in config.json
    "silu": Gating(silu_times, exact_silu_times, ("swish", "")),
    "gelu_pytorch_tanh": Gating(gelu_tanh_times, exact_gelu_tanh_times, ("gelu", "tanh")),
}


def rounded_times(gate: Tensor, up: Tensor, dtype: torch.dtype, times: Activation) -> Tensor:
    """Apply `times` to float32 inputs and round the result to `dtype`."""
    return times(gate, up).to(dtype)


def widened_times(gate: Tensor, up: Tensor, times: Activation) -> Tensor:
    """Apply `times` to inputs of a smaller type in float32, and round the result to that type."""
    return times(gate.float(), up.float()).to(gate.dtype)


class GatedLinear:
    """One linear for gate and up, followed by the activation."""

    def __init__(self, both: Linear, activation: Activation) -> None:
        """`both` returns the outputs of gate, then those of up."""
        self.product = both
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.product(x).chunk(2, dim=-1)  # [rows, intermediate]
        return self._activation(gate, up)


class PackedGatedLinear:
    """Two packed linears with fused activation and multiplication, computed in float32 before the results are
    rounded."""

    def __init__(self, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None,
                 operation: tuple[str, str] = GATINGS["silu"].on_the_way) -> None:
        """`gate` and `up` are copied, so the caller may free them."""
        self._operation, self._algorithm = operation
        self._gate, self._gate_bias = pack(gate), gate_bias
        self._up, self._up_bias = pack(up), up_bias
        self._activated = torch.ops.mkldnn._linear_pointwise.default
        self._times = torch.ops.mkldnn._linear_pointwise.binary

    @property
    def product(self) -> Linear:
        """Linear including the activation, which is fused into it."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return exactly(self._multiply, x)

    def _multiply(self, x: Tensor) -> Tensor:
        gate = self._activated(x, self._gate, self._gate_bias, self._operation, [], self._algorithm)
        product: Tensor = self._times(x, gate, self._up, self._up_bias, "mul")
        return product
