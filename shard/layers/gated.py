"""The gated product: activation(x · gate) times x · up, so that a row's bits do not depend on the others.

torch's own `silu` would not do: where it cuts the numbers into threads and vectors depends on how many rows there are,
and the ends of a cut are computed in another way. Knows nothing of ranks.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from shard.layers.linear import Linear, pack

Activation = Callable[[Tensor, Tensor], Tensor]


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate).mul_(up)


def exact_silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """Of operations each of which gives a number the same bits wherever it stands. For float32 only: smaller types
    would be rounded in between."""
    return (gate * up).div_(gate.neg().exp_().add_(1))


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

    def __init__(self, gate: Tensor, up: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None) -> None:
        """The weights are copied, and may be forgotten."""
        self._gate, self._gate_bias = pack(gate), gate_bias
        self._up, self._up_bias = pack(up), up_bias
        self._activated = torch.ops.mkldnn._linear_pointwise.default
        self._times = torch.ops.mkldnn._linear_pointwise.binary

    @property
    def product(self) -> Linear:
        """Activation included: it is made on the way."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == 1:  # alone, a row may be computed in another way
            return self(x.repeat(2, 1))[:1]
        gate = self._activated(x, self._gate, self._gate_bias, "swish", [], "")
        product: Tensor = self._times(x, gate, self._up, self._up_bias, "mul")
        return product
