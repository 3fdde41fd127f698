import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from shard.ops.gelu_linear import GeluLinear, PackedGeluLinear
from shard.ops.linear import can_pack

DTYPES = [pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason="not packed on this processor"))
          for dtype in (torch.float32, torch.bfloat16)]
GELU_APPROXIMATIONS = ["none", "tanh"]


def make_weight_and_bias(inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(outputs, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), outputs=st.sampled_from([1, 33, 43, 64, 171, 500]),
       approximate=st.sampled_from(GELU_APPROXIMATIONS))
@settings(max_examples=60)
def test_result_does_not_depend_on_other_rows(
        dtype: torch.dtype, num_rows: int, place: int, outputs: int, approximate: str) -> None:
    torch.manual_seed(num_rows)
    linear = PackedGeluLinear(*make_weight_and_bias(64, outputs, dtype), approximate)
    rows, row, place = torch.randn(num_rows, 64, dtype=dtype), torch.randn(1, 64, dtype=dtype), place % num_rows
    rows[place] = row
    assert torch.equal(linear(rows)[place], linear(row)[0])


@pytest.mark.parametrize("kind", [GeluLinear, PackedGeluLinear])
@pytest.mark.parametrize("approximate", GELU_APPROXIMATIONS)
@pytest.mark.parametrize("num_rows", [1, 20])
def test_gelu_is_applied_after_the_linear(
        kind: type[GeluLinear | PackedGeluLinear], approximate: str, num_rows: int) -> None:
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
    output = PackedGeluLinear(torch.ones(1, 1), None, approximate)(rows)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
