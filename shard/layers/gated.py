"""The gated product: activation(x · gate) times x · up, so that a row's bits do not depend on the others.

torch's own `silu` would not do: where it cuts the numbers into threads and vectors depends on how many rows there are,
and the ends of a cut are computed in another way. Knows nothing of ranks.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shard.layers.linear import Linear, exactly, pack

Activation = Callable[[Tensor, Tensor], Tensor]


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate).mul_(up)


def exact_silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """Of operations each of which gives a number the same bits wherever it stands. For float32 only: smaller types
    would be rounded in between."""
    return (gate * up).div_(gate.neg().exp_().add_(1))


def gelu_tanh_times(gate: Tensor, up: Tensor) -> Tensor:
    return functional.gelu(gate, approximate="tanh").mul_(up)


def exact_gelu_tanh_times(gate: Tensor, up: Tensor) -> Tensor:
    """As for silu: the approximation by tanh is a sigmoid of 2 * sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    bent = (gate * gate).mul_(0.044715).add_(1).mul_(gate).mul_(-2 * math.sqrt(2 / math.pi))
    return (gate * up).div_(bent.exp_().add_(1))


class Gating(NamedTuple):
    """One activation, in each way that it is computed."""

    plain: Activation  # torch's own, where nothing is exact
    exact: Activation  # for float32
    on_the_way: tuple[str, str]  # oneDNN's operation behind a packed product, and its algorithm


GATINGS = {  # by their names in config.json
    "silu": Gating(silu_times, exact_silu_times, ("swish", "")),
    "gelu_pytorch_tanh": Gating(gelu_tanh_times, exact_gelu_tanh_times, ("gelu", "tanh")),
}


def rounded_times(gate: Tensor, up: Tensor, dtype: torch.dtype, times: Activation) -> Tensor:
    """Of float32, to be rounded at the end."""
    return times(gate, up).to(dtype)


def widened_times(gate: Tensor, up: Tensor, times: Activation) -> Tensor:
    """Of smaller types, as float32 and then rounded again."""
    return times(gate.float(), up.float()).to(gate.dtype)


class GatedLinear:
    """One product for both, then the activation."""

    def __init__(self, both: Linear, activation: Activation) -> None:
        """`both` gives the gate's half and then the other."""
        self.product = both
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.product(x).chunk(2, dim=-1)  # [rows, intermediate]
        return self._activation(gate, up)


class PackedGatedLinear:
    """Two packed products that do the rest on their way, in float32 before a result is rounded."""

    def __init__(self, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None,
                 operation: tuple[str, str] = GATINGS["silu"].on_the_way) -> None:
        """The weights are copied, and may be forgotten."""
        self._operation, self._algorithm = operation
        self._gate, self._gate_bias = pack(gate), gate_bias
        self._up, self._up_bias = pack(up), up_bias
        self._activated = torch.ops.mkldnn._linear_pointwise.default
        self._times = torch.ops.mkldnn._linear_pointwise.binary

    @property
    def product(self) -> Linear:
        """Activation included: it is made on the way."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return exactly(self._multiply, x)

    def _multiply(self, x: Tensor) -> Tensor:
        gate = self._activated(x, self._gate, self._gate_bias, self._operation, [], self._algorithm)
        product: Tensor = self._times(x, gate, self._up, self._up_bias, "mul")
        return product
