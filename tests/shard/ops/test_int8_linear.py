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
from shard.ops.int8_linear import Buffers, PackedBuffer, PlainBuffer, TiledLinear, can_fill
from shard.ops.linear import can_pack
from shard.quantization.format import Coded

CPU = torch.device("cpu")
MOST_ROWS = 300
DTYPES = [pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason="not packed on this processor"))
          for dtype in (torch.float32, torch.bfloat16)]
Shape = tuple[int, int]


def coded(codes: Tensor) -> Coded:
    scales = torch.linspace(0.5, 2, len(codes)).view(-1, 1)
    return Coded(lambda first, last: codes[first:last], scales, torch.zeros(codes.shape[1]).long(), signed_bytes=True)


def random_codes(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(0))


def expected(x: Tensor, *parts: Tensor) -> Tensor:
    return torch.cat([functional.linear(x, part.float()) * coded(part).scales.view(-1) for part in parts], dim=1)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "TILE_BYTES", 10000)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@given(num_rows=st.integers(2, MOST_ROWS), place=st.integers(0, MOST_ROWS),
       shape=st.sampled_from([(1, 7), (33, 64), (171, 500), (500, 171)]))
@settings(max_examples=30)
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype, num_rows: int, place: int, shape: Shape) -> None:
    torch.manual_seed(num_rows)
    linear = TiledLinear([coded(random_codes(*shape))], torch.randn(shape[0]), Buffers(dtype, CPU))
    rows, row, place = torch.randn(num_rows, shape[1]).to(dtype), torch.randn(1, shape[1]).to(dtype), place % num_rows
    rows[place] = row
    assert torch.equal(linear(rows)[place], linear(row)[0])


@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_the_same_bits_at_every_count(dtype: torch.dtype) -> None:
    linear = TiledLinear([coded(random_codes(100, 96))], None, Buffers(dtype, CPU))
    rows = torch.randn(MOST_ROWS, 96, dtype=dtype)
    every = linear(rows)
    for count in (*range(1, 40), *range(40, MOST_ROWS, 7)):
        assert torch.equal(linear(rows[-count:]), every[-count:])


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("num_outputs", [[5], [300], [100, 3, 200], [1, 399]])
@pytest.mark.parametrize("num_rows", [1, 2, 50])
def test_parts_stand_side_by_side_whatever_the_tiles(num_outputs: list[int], num_rows: int) -> None:
    parts, x = [random_codes(outputs, 64) for outputs in num_outputs], torch.randn(num_rows, 64)
    linear = TiledLinear([coded(part) for part in parts], None, Buffers(torch.float32, CPU))
    torch.testing.assert_close(linear(x), expected(x, *parts), rtol=1e-4, atol=1e-3)


def test_the_bias_is_added_before_rounding() -> None:
    codes, bias, x = random_codes(24, 64), torch.arange(24.0), torch.randn(3, 64).bfloat16()
    linear = TiledLinear([coded(codes)], bias, Buffers(torch.bfloat16, CPU))
    torch.testing.assert_close(linear(x), (expected(x.float(), codes) + bias).bfloat16(), rtol=0.02, atol=0.5)


@pytest.mark.parametrize("make", [
    lambda shape: PackedBuffer(shape, torch.float32), lambda shape: PlainBuffer(shape, torch.float32, CPU)])
def test_a_code_takes_a_byte(make: Callable[[Shape], PackedBuffer | PlainBuffer]) -> None:
    ordered = make((64, 96)).order(random_codes(64, 96))
    assert ordered.nbytes == 64 * 96


@pytest.mark.parametrize("fills", [True, False])
def test_what_cannot_be_filled_is_multiplied_as_it_is(monkeypatch: pytest.MonkeyPatch, fills: bool) -> None:
    monkeypatch.setattr(int8_linear, "can_fill", lambda _: fills)
    buffer = Buffers(torch.float32, CPU).get(24, 64)
    assert isinstance(buffer, PackedBuffer if fills else PlainBuffer)
    codes, x = random_codes(24, 64), torch.randn(3, 64)
    torch.testing.assert_close(buffer.multiply(x, buffer.order(codes)), functional.linear(x, codes.float()),
                               rtol=1e-4, atol=1e-3)


def test_a_type_that_cannot_be_packed_cannot_be_filled() -> None:
    assert can_fill(torch.float32)
    assert not can_fill(torch.float64)


def test_products_of_one_shape_share_a_buffer() -> None:
    buffers = Buffers(torch.float32, CPU)
    assert buffers.get(24, 64) is buffers.get(24, 64)
    assert buffers.get(24, 64) is not buffers.get(64, 24)


@pytest.mark.parametrize(("shape", "height"), [((1152, 896), 1152), ((4096, 4096), 256), ((9728, 896), 1088)])
def test_tiles_are_about_equally_high(shape: Shape, height: int) -> None:
    assert Buffers(torch.float32, CPU).height(*shape) == height
