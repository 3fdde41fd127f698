"""Why there are two kinds. One core of an EPYC without AVX-512, 896 -> 2 * 4864 in float32, the least of 25
interleaved rounds, microseconds at 2, 8, 32 and 128 rows (November 2026): one product with the exact activation behind
it 3045, 6224, 9599 and 31790; two products with the activation on their way 3137, 6549, 11082 and 37003; one product
with torch's own activation, which is not exact, 2949, 6031, 9513 and 31429. In bfloat16 the first would round between.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from shard.layers.gated import GatedLinear, PackedGatedLinear, exact_silu_times, silu_times
from shard.layers.linear import Linear, can_pack, make_linear

Made = Callable[[Tensor, Tensor, Tensor, Tensor], Linear]


def one_product(gate: Tensor, up: Tensor, gate_bias: Tensor, up_bias: Tensor) -> Linear:
    return GatedLinear(make_linear(torch.cat([gate, up]), torch.cat([gate_bias, up_bias])), exact_silu_times)


KINDS = [
    pytest.param(one_product, torch.float32, id="one product"),
    pytest.param(PackedGatedLinear, torch.float32, id="two products"),
    pytest.param(PackedGatedLinear, torch.bfloat16, id="two products in bfloat16", marks=pytest.mark.skipif(
        not can_pack(torch.bfloat16), reason="not packed on this processor")),
]


def parameters(inputs: int, outputs: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(*shape, dtype=dtype) for shape in 2 * [(outputs, inputs)] + 2 * [(outputs,)]]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "dtype"), KINDS)
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), outputs=st.sampled_from([1, 33, 43, 64, 171, 500]))
@settings(max_examples=60)
def test_a_row_has_the_same_bits_in_any_company(
        make: Made, dtype: torch.dtype, num_rows: int, place: int, outputs: int) -> None:
    torch.manual_seed(num_rows)
    gated = make(*parameters(64, outputs, dtype))
    pair, place = torch.randn(2, 64, dtype=dtype), place % (num_rows - 1)
    rows = torch.randn(num_rows, 64, dtype=dtype)
    rows[place:place + 2] = pair
    assert torch.equal(gated(rows)[place:place + 2], gated(pair))


@pytest.mark.parametrize(("make", "dtype"), KINDS)
def test_the_product_is_gated_by_silu(make: Made, dtype: torch.dtype) -> None:
    gate, up, gate_bias, up_bias = given = parameters(64, 43, dtype)
    rows = torch.randn(20, 64, dtype=dtype)
    expected = functional.silu(functional.linear(rows, gate, gate_bias)) * functional.linear(rows, up, up_bias)
    torch.testing.assert_close(make(*given)(rows), expected)


def test_silu_is_torchs_to_a_millionth() -> None:
    gate = torch.linspace(-200, 200, 10001)
    torch.testing.assert_close(exact_silu_times(gate, torch.ones(())), functional.silu(gate), rtol=1e-6, atol=1e-7)


def test_torchs_own_silu_serves_where_nothing_is_exact() -> None:
    gate, up = torch.randn(2, 3, 8)
    assert torch.equal(silu_times(gate, up), functional.silu(gate) * up)
