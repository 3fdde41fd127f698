"""Gated activations by compiled kernels."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.instruction_sets import AVAILABLE_SETS
from torch import Tensor
from torch.nn import functional

from shard.native.library import load_library
from shard.ops.activated_linear import GATED_ACTIVATIONS, NativeGatedLinear

library = load_library()
pytestmark = pytest.mark.skipif(library is None, reason="there are no compiled kernels here")
TORCH_ACTIVATIONS = {"silu": functional.silu, "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh")}


def gate(numbers: Tensor, activation: str = "silu", dtype: torch.dtype = torch.float32,
         instruction_set: str = AVAILABLE_SETS[0] if AVAILABLE_SETS else "") -> Tensor:
    """Apply the activation to `[rows, 2 * width]` numbers: gates, then the factors."""
    assert library is not None
    chosen = replace(library, instruction_set=instruction_set)
    return NativeGatedLinear(lambda x: x, GATED_ACTIVATIONS[activation].native, dtype, chosen)(numbers)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("activation", GATED_ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 7, 16, 100, 2500])
def test_results_match_torch_to_a_millionth(instruction_set: str, activation: str, width: int) -> None:
    numbers = torch.randn(20, 2 * width, generator=torch.Generator().manual_seed(0)) * 4
    gates, ups = numbers.double().chunk(2, dim=1)
    expected = TORCH_ACTIVATIONS[activation](gates) * ups
    result = gate(numbers, activation, instruction_set=instruction_set)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=50)
@given(rows=st.integers(1, 40), first=st.integers(0, 40), width=st.sampled_from([1, 33, 1030]),
       activation=st.sampled_from([*GATED_ACTIVATIONS]), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
       seed=st.integers(0, 2**32))
def test_result_does_not_depend_on_other_rows(rows: int, first: int, width: int, activation: str,  # noqa: PLR0917
                                              dtype: torch.dtype, seed: int) -> None:
    numbers = torch.randn(80, 2 * width, generator=torch.Generator().manual_seed(seed))
    together = gate(numbers, activation, dtype)
    assert torch.equal(gate(numbers[first:first + rows], activation, dtype), together[first:first + rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", GATED_ACTIVATIONS)
def test_all_instruction_sets_give_the_same_bits(activation: str, dtype: torch.dtype) -> None:
    numbers = torch.randn(30, 2 * 77) * 5
    results = [gate(numbers, activation, dtype, one) for one in AVAILABLE_SETS]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
def test_bfloat16_is_rounded_as_torch_rounds(instruction_set: str) -> None:
    numbers = torch.randn(50, 2 * 90) * 3
    numbers[3, 5] = torch.nan
    result = gate(numbers, dtype=torch.bfloat16, instruction_set=instruction_set)
    expected = gate(numbers, instruction_set=instruction_set).bfloat16()
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("activation", GATED_ACTIVATIONS)
def test_extreme_gates_saturate(activation: str) -> None:
    numbers = torch.tensor([[-1e4, -90.0, 90.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(gate(numbers, activation), torch.tensor([[0.0, 0.0, 90.0, 1e4]]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_number_that_is_not_finite_stays_so(value: float) -> None:
    numbers = torch.ones(1, 60)
    numbers[0, 3] = numbers[0, 45] = value
    assert (~gate(numbers).isfinite()).nonzero()[:, 1].tolist() == [3, 15]
