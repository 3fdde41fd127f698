"""Linears with int8 weights. Times on one core of an EPYC without AVX-512, weights larger than any cache, minimum of 12
interleaved rounds, microseconds at 2, 8, 32 and 128 rows (November 2026): 4096 -> 4096 in float32 5124, 7548, 16429 and
53998, as int8 4441, 7371, 16899 and 57701; 896 -> 9728 in float32 2169, 3844, 9182 and 29756, as int8 2507, 4137, 10728
and 36168.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from shard.ops import int8_linear
from shard.ops.int8_linear import (
    DequantBuffers,
    Int8Linear,
    PackedDequantBuffer,
    PlainDequantBuffer,
    can_overwrite_packed_weight,
)
from shard.ops.unquantized_linear import can_pack
from shard.quantization.quantization_format import QuantizedSlice

CPU = torch.device("cpu")
MAX_ROWS = 300
DTYPES = [pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason="not packed on this processor"))
          for dtype in (torch.float32, torch.bfloat16)]
MatrixShape = tuple[int, int]


def make_coded_weight(codes: Tensor) -> QuantizedSlice:
    scales = torch.linspace(0.5, 2, len(codes)).view(-1, 1)
    return QuantizedSlice(lambda first, last: codes[first:last], scales, torch.zeros(codes.shape[1]).long(),
                          is_int8=True)


def make_random_codes(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(0))


def compute_expected_output(x: Tensor, *weights: Tensor) -> Tensor:
    return torch.cat([functional.linear(x, part.float()) * make_coded_weight(part).scales.view(-1) for part in weights],
                     dim=1)


@pytest.fixture
def use_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "TILE_BYTES", 10000)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=st.integers(2, MAX_ROWS), place=st.integers(0, MAX_ROWS),
       shape=st.sampled_from([(1, 7), (33, 64), (171, 500), (500, 171)]))
@settings(max_examples=30)
def test_result_does_not_depend_on_other_rows(dtype: torch.dtype, num_rows: int, place: int,
                                              shape: MatrixShape) -> None:
    torch.manual_seed(num_rows)
    linear = Int8Linear([make_coded_weight(make_random_codes(*shape))], torch.randn(shape[0]),
                        DequantBuffers(dtype, CPU))
    rows, row, place = torch.randn(num_rows, shape[1]).to(dtype), torch.randn(1, shape[1]).to(dtype), place % num_rows
    rows[place] = row
    assert torch.equal(linear(rows)[place], linear(row)[0])


@pytest.mark.slow
@pytest.mark.usefixtures("use_small_tiles")
@pytest.mark.parametrize("dtype", DTYPES)
def test_result_does_not_depend_on_the_number_of_rows(dtype: torch.dtype) -> None:
    linear = Int8Linear([make_coded_weight(make_random_codes(100, 96))], None, DequantBuffers(dtype, CPU))
    rows = torch.randn(MAX_ROWS, 96, dtype=dtype)
    expected_output = linear(rows)
    for count in (*range(1, 40), *range(40, MAX_ROWS, 7)):
        assert torch.equal(linear(rows[-count:]), expected_output[-count:])


@pytest.mark.usefixtures("use_small_tiles")
@pytest.mark.parametrize("num_outputs", [[5], [300], [100, 3, 200], [1, 399]])
@pytest.mark.parametrize("num_rows", [1, 2, 50])
def test_outputs_of_parts_are_concatenated_whatever_the_tiles(num_outputs: list[int], num_rows: int) -> None:
    parts, x = [make_random_codes(outputs, 64) for outputs in num_outputs], torch.randn(num_rows, 64)
    linear = Int8Linear([make_coded_weight(part) for part in parts], None, DequantBuffers(torch.float32, CPU))
    torch.testing.assert_close(linear(x), compute_expected_output(x, *parts), rtol=1e-4, atol=1e-3)


def test_the_bias_is_added_before_rounding() -> None:
    codes, bias, x = make_random_codes(24, 64), torch.arange(24.0), torch.randn(3, 64).bfloat16()
    linear = Int8Linear([make_coded_weight(codes)], bias, DequantBuffers(torch.bfloat16, CPU))
    torch.testing.assert_close(linear(x), (compute_expected_output(x.float(), codes) + bias).bfloat16(), rtol=0.02,
                               atol=0.5)


@pytest.mark.parametrize("make", [lambda shape: PackedDequantBuffer(shape, torch.float32),
                                  lambda shape: PlainDequantBuffer(shape, torch.float32, CPU)])
def test_each_code_takes_one_byte(make: Callable[[MatrixShape], PackedDequantBuffer | PlainDequantBuffer]) -> None:
    ordered = make((64, 96)).arrange_codes(make_random_codes(64, 96))
    assert ordered.nbytes == 64 * 96


@pytest.mark.parametrize("fills", [True, False])
def test_plain_buffer_is_used_if_a_packed_one_cannot_be_filled(monkeypatch: pytest.MonkeyPatch, fills: bool) -> None:
    monkeypatch.setattr(int8_linear, "can_overwrite_packed_weight", lambda _: fills)
    buffer = DequantBuffers(torch.float32, CPU).get_buffer(24, 64)
    assert isinstance(buffer, PackedDequantBuffer if fills else PlainDequantBuffer)
    codes, x = make_random_codes(24, 64), torch.randn(3, 64)
    torch.testing.assert_close(buffer.multiply_codes(x, buffer.arrange_codes(codes)),
                               functional.linear(x, codes.float()), rtol=1e-4, atol=1e-3)


def test_dtype_that_cannot_be_packed_cannot_be_filled() -> None:
    assert can_overwrite_packed_weight(torch.float32)
    assert not can_overwrite_packed_weight(torch.float64)


def test_linears_of_one_shape_share_a_buffer() -> None:
    buffers = DequantBuffers(torch.float32, CPU)
    assert buffers.get_buffer(24, 64) is buffers.get_buffer(24, 64)
    assert buffers.get_buffer(24, 64) is not buffers.get_buffer(64, 24)


@pytest.mark.parametrize(("shape", "height"), [((1152, 896), 1152), ((4096, 4096), 256), ((9728, 896), 1088)])
def test_tiles_have_about_equal_heights(shape: MatrixShape, height: int) -> None:
    assert DequantBuffers(torch.float32, CPU).choose_tile_rows(*shape) == height
