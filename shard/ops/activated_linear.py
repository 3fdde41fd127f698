"""Linears followed by an activation: GELU, or in a gated linear activation(x · gate) times x · up.

The exact and the packed variants follow docs/concepts/exactness.md, "The same bits at any index"; the packed ones also
"Products with independent rows".
"""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shard.native.library import NativeLibrary, allocate_result
from shard.ops.unquantized_linear import Linear, PackedLinear, apply_row_exact, make_linear, pack_weight

GatedActivation = Callable[[Tensor, Tensor], Tensor]


def batch_invariant_silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Compute silu(gate) * up. For float32 only: smaller types would be rounded in between."""
    return (gate * up).div_(gate.neg().exp_().add_(1))


def batch_invariant_gelu_tanh_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Compute gelu(gate) * up like silu: with tanh, gelu is x times the sigmoid of 2 * sqrt(2 / pi) * (x + 0.044715 *
    x^3)."""
    exponent = (gate * gate).mul_(0.044715).add_(1).mul_(gate).mul_(-2 * math.sqrt(2 / math.pi))
    return (gate * up).div_(exponent.exp_().add_(1))


class ActivationVariants(NamedTuple):
    """Implementations of one activation."""

    fast: GatedActivation  # torch's own; bits may depend on other rows
    exact: GatedActivation  # for float32
    onednn_fused: tuple[str, str]  # oneDNN's operation fused into a packed linear, and its algorithm
    native: int  # its number in shard/native/activations.c


GATED_ACTIVATIONS = {  # by their names in config.json
    "silu": ActivationVariants(lambda gate, up: functional.silu(gate).mul_(up), batch_invariant_silu_and_mul,
                               ("swish", ""), 0),
    "gelu_pytorch_tanh": ActivationVariants(lambda gate, up: functional.gelu(gate, approximate="tanh").mul_(up),
                                            batch_invariant_gelu_tanh_and_mul, ("gelu", "tanh"), 1),
}


def apply_and_round(gate: Tensor, up: Tensor, dtype: torch.dtype, activation: GatedActivation) -> Tensor:
    """Apply `activation` in float32 and round the result to `dtype`."""
    return activation(gate.float(), up.float()).to(dtype)


@dataclass(eq=False, slots=True)
class GatedLinear:
    """One linear for gate and up, followed by the activation."""

    linear: Linear  # returns the outputs of gate, then those of up
    activation: GatedActivation

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.linear(x).chunk(2, dim=-1)  # [rows, intermediate]
        return self.activation(gate, up)


class GatingArguments(ctypes.Structure):
    """`Gating` in activations.c."""

    _fields_: ClassVar = [*((name, ctypes.c_void_p) for name in ("gates_and_ups", "results", "rounded")),
                          *((name, ctypes.c_int64) for name in ("rows", "width", "stride", "activation"))]


@dataclass(eq=False, slots=True)
class NativeGatedLinear:
    """One linear for gate and up, followed by the activation in a compiled kernel."""

    linear: Linear  # returns the outputs of gate, then those of up, in float32
    activation: int  # ActivationVariants.native
    dtype: torch.dtype  # of the results: float32, or bfloat16 rounded once
    library: NativeLibrary

    def __call__(self, x: Tensor) -> Tensor:
        gates_and_ups = self.linear(x)
        if (gates_and_ups.dtype, gates_and_ups.stride(1)) != (torch.float32, 1):  # the kernel cannot tell
            raise ValueError(f"needs contiguous rows in float32, got {gates_and_ups.dtype}, {gates_and_ups.stride()}")
        rows, width = len(gates_and_ups), gates_and_ups.shape[1] // 2
        results = allocate_result(rows, width, dtype=self.dtype)
        address = results.data_ptr()
        is_rounded = self.dtype is torch.bfloat16
        self.library.apply_gated_activation(GatingArguments(
            gates_and_ups.data_ptr(), None if is_rounded else address, address if is_rounded else None, rows, width,
            gates_and_ups.stride(0), self.activation), num_results=rows * width)
        return results


class PackedGatedLinear:
    """Two packed linears with fused activation and multiplication, computed in float32 before the results are
    rounded."""

    def __init__(self, gate_weight: Tensor, up_weight: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None,
                 onednn_activation: tuple[str, str] = GATED_ACTIVATIONS["silu"].onednn_fused) -> None:
        """`gate_weight` and `up_weight` are copied, so the caller may free them."""
        self._gate = PackedLinear(gate_weight, gate_bias, onednn_activation)
        self._up_weight, self._up_bias = pack_weight(up_weight), up_bias
        self._mkldnn_linear_mul = torch.ops.mkldnn._linear_pointwise.binary

    @property
    def linear(self) -> Linear:
        """Linear including the activation, which is fused into it."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return apply_row_exact(self._multiply_gated, x)

    def _multiply_gated(self, x: Tensor) -> Tensor:
        result: Tensor = self._mkldnn_linear_mul(x, self._gate.multiply(x), self._up_weight, self._up_bias, "mul")
        return result


class LinearWithGelu:
    """Linear followed by torch's GELU."""

    def __init__(self, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
        """`approximate` is none or tanh, as in torch."""
        self._linear = make_linear(weight, bias)
        self._approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return functional.gelu(self._linear(x), approximate=self._approximate)


@dataclass(eq=False, slots=True)
class LinearWithSeparateGelu:
    """Linear with separate GELU, so that an adapter's update can be added before the activation."""

    linear: Linear
    approximate: str  # none or tanh, as in torch

    def __call__(self, x: Tensor) -> Tensor:
        wide = self.linear(x).float()
        if self.approximate == "tanh":  # as in `batch_invariant_gelu_tanh_and_mul`
            exponent = (wide * wide).mul_(0.044715).add_(1).mul_(wide).mul_(-2 * math.sqrt(2 / math.pi))
            return (wide / exponent.exp_().add_(1)).to(x.dtype)
        return (wide * math.sqrt(0.5)).erf_().add_(1).mul_(wide).mul_(0.5).to(x.dtype)


class PackedLinearWithGelu(PackedLinear):
    """Packed linear with fused GELU."""

    def __init__(self, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
        super().__init__(weight, bias, ("gelu", approximate))
