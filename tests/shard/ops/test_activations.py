import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from shard.ops.activations import ActivatedLinear, PackedActivatedLinear
from shard.ops.linear import can_pack

DTYPES = [pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason="not packed on this processor"))
          for dtype in (torch.float32, torch.bfloat16)]
WAYS = ["none", "tanh"]


def parameters(inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(outputs, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), outputs=st.sampled_from([1, 33, 43, 64, 171, 500]),
       approximate=st.sampled_from(WAYS))
@settings(max_examples=60)
def test_a_row_has_the_same_bits_in_any_company(
        dtype: torch.dtype, num_rows: int, place: int, outputs: int, approximate: str) -> None:
    torch.manual_seed(num_rows)
    linear = PackedActivatedLinear(*parameters(64, outputs, dtype), approximate)
    rows, row, place = torch.randn(num_rows, 64, dtype=dtype), torch.randn(1, 64, dtype=dtype), place % num_rows
    rows[place] = row
    assert torch.equal(linear(rows)[place], linear(row)[0])


@pytest.mark.parametrize("kind", [ActivatedLinear, PackedActivatedLinear])
@pytest.mark.parametrize("approximate", WAYS)
@pytest.mark.parametrize("num_rows", [1, 20])
def test_gelu_follows_the_product(
        kind: type[ActivatedLinear | PackedActivatedLinear], approximate: str, num_rows: int) -> None:
    weight, bias = parameters(64, 43, torch.float32)
    rows = torch.randn(num_rows, 64)
    expected = functional.gelu(functional.linear(rows, weight, bias), approximate=approximate)
    torch.testing.assert_close(kind(weight, bias, approximate)(rows), expected)
    unbiased = functional.gelu(functional.linear(rows, weight), approximate=approximate)
    torch.testing.assert_close(kind(weight, None, approximate)(rows), unbiased)


@pytest.mark.parametrize("approximate", WAYS)
def test_gelu_is_right_to_a_millionth(approximate: str) -> None:
    rows = torch.linspace(-20, 20, 10001).unsqueeze(1)
    expected = functional.gelu(rows.double(), approximate=approximate).float()
    found = PackedActivatedLinear(torch.ones(1, 1), None, approximate)(rows)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
