"""Linears with activations. Times that explain why there are two classes of gated linears: one core of an EPYC without
AVX-512, 896 -> 2 * 4864 in float32, minimum of 25 interleaved rounds, microseconds at 2, 8, 32 and 128 rows (November
2026): one matmul followed by the exact activation 3045, 6224, 9599 and 31790; two matmuls with fused activation 3137,
6549, 11082 and 37003; one matmul with torch's own activation, which is not exact, 2949, 6031, 9513 and 31429. In
bfloat16 the first would round before the activation.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from shard.ops.activated_linear import (
    GATED_ACTIVATIONS,
    GatedLinear,
    LinearWithGelu,
    PackedGatedLinear,
    PackedLinearWithGelu,
    batch_invariant_gelu_tanh_and_mul,
    batch_invariant_silu_and_mul,
)
from shard.ops.unquantized_linear import Linear, can_pack, make_linear

MakeLinear = Callable[[Tensor, Tensor, Tensor, Tensor], Linear]
TORCH_ACTIVATIONS = {"silu": functional.silu, "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh")}


class GatedLinearCase(NamedTuple):
    make: MakeLinear
    dtype: torch.dtype
    activation: str


def make_single_matmul_linear(gate: Tensor, up: Tensor, gate_bias: Tensor, up_bias: Tensor, activation: str) -> Linear:
    return GatedLinear(make_linear(torch.cat([gate, up]), torch.cat([gate_bias, up_bias])),
                       GATED_ACTIVATIONS[activation].exact)


def make_two_matmul_linear(*parameters: Tensor, activation: str) -> Linear:
    return PackedGatedLinear(*parameters, onednn_activation=GATED_ACTIVATIONS[activation].onednn_fused)


GATED_LINEAR_CASES = [
    pytest.param(GatedLinearCase(partial(make, activation=activation), dtype, activation), id=f"{name}, {activation}",
                 marks=marks)
    for activation in GATED_ACTIVATIONS for name, make, dtype, marks in (
        ("one product", make_single_matmul_linear, torch.float32, ()),
        ("two products", make_two_matmul_linear, torch.float32, ()),
        ("two products in bfloat16", make_two_matmul_linear, torch.bfloat16, pytest.mark.skipif(
            not can_pack(torch.bfloat16), reason="not packed on this processor")))]


def make_parameters(inputs: int, outputs: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(*shape, dtype=dtype) for shape in 2 * [(outputs, inputs)] + 2 * [(outputs,)]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", GATED_LINEAR_CASES)
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), outputs=st.sampled_from([1, 33, 43, 64, 171, 500]))
@settings(max_examples=40)
def test_result_does_not_depend_on_other_rows(kind: GatedLinearCase, num_rows: int, place: int, outputs: int) -> None:
    torch.manual_seed(num_rows)
    gated = kind.make(*make_parameters(64, outputs, kind.dtype))
    pair, place = torch.randn(2, 64, dtype=kind.dtype), place % (num_rows - 1)
    rows = torch.randn(num_rows, 64, dtype=kind.dtype)
    rows[place:place + 2] = pair
    assert torch.equal(gated(rows)[place:place + 2], gated(pair))


@pytest.mark.parametrize("kind", GATED_LINEAR_CASES)
def test_linear_is_gated_by_the_activation(kind: GatedLinearCase) -> None:
    torch.manual_seed(0)
    tensors, rows = make_parameters(64, 43, kind.dtype), torch.randn(20, 64, dtype=kind.dtype)
    actual = kind.make(*tensors)(rows)
    # In float64, so that nothing is rounded before gating; in float32 a dot product of 64 may be off by some 5e-6.
    gate, up, gate_bias, up_bias, rows = (tensor.double() for tensor in (*tensors, rows))
    up_output = functional.linear(rows, up, up_bias)
    gated = TORCH_ACTIVATIONS[kind.activation](functional.linear(rows, gate, gate_bias))
    expected, rounding = gated * up_output, 4 * torch.finfo(kind.dtype).eps
    assert ((actual - expected).abs() <= 1e-5 * (1 + gated.abs() + up_output.abs()) + rounding * expected.abs()).all()


def test_silu_matches_torch_to_a_millionth() -> None:
    gate = torch.linspace(-200, 200, 10001)
    torch.testing.assert_close(batch_invariant_silu_and_mul(gate, torch.ones(())), functional.silu(gate), rtol=1e-6,
                               atol=1e-7)


def test_gelu_matches_torch_to_a_millionth() -> None:
    gate = torch.linspace(-200, 200, 10001)
    expected = functional.gelu(gate, approximate="tanh")
    torch.testing.assert_close(batch_invariant_gelu_tanh_and_mul(gate, torch.ones(())), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activation", GATED_ACTIVATIONS)
def test_fast_activation_is_that_of_torch(activation: str) -> None:
    gate, up = torch.randn(2, 3, 8)
    assert torch.equal(GATED_ACTIVATIONS[activation].fast(gate, up), TORCH_ACTIVATIONS[activation](gate) * up)


@pytest.mark.parametrize("activation", GATED_ACTIVATIONS)
def test_extreme_gates_saturate(activation: str) -> None:
    gate = torch.tensor([-1e30, -1e4, 1e4, 1e30])
    gated = GATED_ACTIVATIONS[activation].exact(gate, torch.ones(4))
    assert gated.tolist() == [0.0, 0.0, *gate[2:].tolist()]


# -- GELU without a gate

GELU_DTYPES = [pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason="not packed on this processor"))
          for dtype in (torch.float32, torch.bfloat16)]
GELU_APPROXIMATIONS = ["none", "tanh"]


def make_weight_and_bias(inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(outputs, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", GELU_DTYPES)
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), outputs=st.sampled_from([1, 33, 43, 64, 171, 500]),
       approximate=st.sampled_from(GELU_APPROXIMATIONS))
@settings(max_examples=60)
def test_gelu_does_not_depend_on_other_rows(
        dtype: torch.dtype, num_rows: int, place: int, outputs: int, approximate: str) -> None:
    torch.manual_seed(num_rows)
    linear = PackedLinearWithGelu(*make_weight_and_bias(64, outputs, dtype), approximate)
    rows, row, place = torch.randn(num_rows, 64, dtype=dtype), torch.randn(1, 64, dtype=dtype), place % num_rows
    rows[place] = row
    assert torch.equal(linear(rows)[place], linear(row)[0])


@pytest.mark.parametrize("kind", [LinearWithGelu, PackedLinearWithGelu])
@pytest.mark.parametrize("approximate", GELU_APPROXIMATIONS)
@pytest.mark.parametrize("num_rows", [1, 20])
def test_gelu_is_applied_after_the_linear(
        kind: type[LinearWithGelu | PackedLinearWithGelu], approximate: str, num_rows: int) -> None:
    weight, bias = make_weight_and_bias(64, 43, torch.float32)
    rows = torch.randn(num_rows, 64)
    expected = functional.gelu(functional.linear(rows, weight, bias), approximate=approximate)
    torch.testing.assert_close(kind(weight, bias, approximate)(rows), expected)
    unbiased = functional.gelu(functional.linear(rows, weight), approximate=approximate)
    torch.testing.assert_close(kind(weight, None, approximate)(rows), unbiased)


@pytest.mark.parametrize("approximate", GELU_APPROXIMATIONS)
def test_packed_gelu_is_accurate_to_a_millionth(approximate: str) -> None:
    rows = torch.linspace(-20, 20, 10001).unsqueeze(1)
    expected = functional.gelu(rows.double(), approximate=approximate).float()
    output = PackedLinearWithGelu(torch.ones(1, 1), None, approximate)(rows)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
