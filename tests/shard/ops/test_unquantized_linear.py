import os
import subprocess
import sys
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from shard.ops.unquantized_linear import (
    PROBE_ROW_COUNTS,
    PackedLinear,
    PlainLinear,
    can_pack,
    make_linear,
    make_matmul_benchmark,
    should_pack,
)

MAX_ROWS = 300
DTYPES = [pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason="not packed on this processor"))
          for dtype in (torch.float32, torch.bfloat16)]
CPU = torch.device("cpu")
LARGE_LINEAR_PROGRAM = """
import torch
from shard.ops.unquantized_linear import make_linear
torch.manual_seed(0)
linear, rows = make_linear(torch.randn(1024, 896)), torch.randn(600, 896)
pairs = torch.cat([linear(rows[place:place + 2]) for place in range(0, 600, 2)])
assert all(torch.equal(linear(rows[:count]), pairs[:count]) for count in (32, 300, 400, 600))
"""

row_counts = st.integers(2, MAX_ROWS)
widths = st.sampled_from([1, 7, 33, 64, 171, 500])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=row_counts, place=st.integers(0, MAX_ROWS), shape=st.tuples(widths, widths), bias=st.booleans())
@settings(max_examples=60)
def test_result_does_not_depend_on_other_rows(
        dtype: torch.dtype, num_rows: int, place: int, shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(num_rows)
    outputs, inputs = shape
    linear = make_linear(torch.randn(outputs, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype) if bias else None)
    rows, row, place = torch.randn(num_rows, inputs, dtype=dtype), torch.randn(1, inputs, dtype=dtype), place % num_rows
    rows[place] = row
    assert torch.equal(linear(rows)[place], linear(row)[0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_result_does_not_depend_on_the_number_of_rows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = make_linear(torch.randn(352, 224, dtype=dtype))
    rows = torch.randn(MAX_ROWS, 224, dtype=dtype)
    expected = linear(rows)
    for count in range(1, MAX_ROWS):
        assert torch.equal(linear(rows[-count:]), expected[-count:])


@pytest.mark.parametrize("bias", [None, torch.arange(24.0)])
@pytest.mark.parametrize("num_rows", [1, 2, 50])
def test_linear_matches_torch(num_rows: int, bias: torch.Tensor | None) -> None:
    weight, rows = torch.randn(24, 64), torch.randn(num_rows, 64)
    torch.testing.assert_close(make_linear(weight, bias)(rows), functional.linear(rows, weight, bias))


def test_original_weight_is_freed_after_packing() -> None:
    weight = torch.randn(24, 64)
    weak_reference = weakref.ref(weight)
    linear = PackedLinear(weight, None)
    del weight
    assert weak_reference() is None
    assert len(linear(torch.ones(2, 64))) == 2


def test_dtype_that_cannot_be_packed_uses_a_plain_linear() -> None:
    assert not can_pack(torch.float64)
    linear = make_linear(torch.eye(3, dtype=torch.float64))
    assert isinstance(linear, PlainLinear)
    assert linear(torch.ones(1, 3, dtype=torch.float64)).tolist() == [[1, 1, 1]]


def test_weights_are_packed_on_the_cpu_only() -> None:
    assert should_pack(torch.float32, CPU)
    assert not should_pack(torch.float32, torch.device("meta"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [
    (9728, 896), (896, 4864), *(pytest.param(*shape, marks=pytest.mark.long) for shape in ((4864, 896), (2048, 2048)))])
def test_wide_linear_does_not_depend_on_other_rows(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    """On processors with AMX, bfloat16 matmuls of more than 32 rows had other bits."""
    torch.manual_seed(0)
    linear, rows = make_linear(torch.randn(outputs, inputs, dtype=dtype)), torch.randn(300, inputs, dtype=dtype)
    expected = torch.cat([linear(row[None]) for row in rows])
    for count in (2, 31, 32, 33, 48, 65, 128, 257, 300):
        assert torch.equal(linear(rows[:count]), expected[:count])
        assert torch.equal(linear(rows[-count:]), expected[-count:])


@pytest.mark.slow
def test_large_linear_does_not_depend_on_other_rows_with_avx_only() -> None:
    """With AVX but no AVX2, every row of a float32 matmul had other bits from 384 rows on."""
    subprocess.run([sys.executable, "-P", "-c", LARGE_LINEAR_PROGRAM], check=True,
                   env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_that_number_types_are_compared_by_have_few_and_many_rows(dtype: torch.dtype) -> None:
    products = make_matmul_benchmark(dtype)()
    assert [product.dtype for product in products] == [dtype, dtype]
    assert tuple(map(len, products)) == PROBE_ROW_COUNTS
