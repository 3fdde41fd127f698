"""Products with int8 weights by compiled kernels.

Times on two cores of an EPYC, four weights of 9728 x 896 and four of 896 x 4864, minimum of seven interleaved rounds,
milliseconds at 1, 8, 32, 128 and 512 rows (November 2026): with AVX2 1.8, 3.9, 12, 44 and 172; with AVX-512 and VNNI
1.7, 2.6, 8.5, 33 and 129; `Int8Linear` in float32 7.7, 10, 24, 75 and 273, in bfloat16 6.8, 8.1, 15, 40 and 146.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.instruction_sets import AVAILABLE_SETS
from torch import Tensor

from shard.native.library import NativeLibrary, load_library
from shard.ops import native_int8_linear
from shard.ops.native_int8_linear import AmxInt8Linear, NativeInt8Linear, make_int8_linear
from shard.quantization.quantization_format import QuantizedSlice

library = load_library()
pytestmark = pytest.mark.skipif(library is None, reason="there are no compiled kernels here")
SHAPES = [(1, 1), (16, 7), (33, 128), (96, 130), (130, 520), (40, 1100)]


def get_library(instruction_set: str) -> NativeLibrary:
    assert library is not None
    return replace(library, instruction_set=instruction_set)


def make_quantized_slice(num_outputs: int, num_inputs: int) -> QuantizedSlice:
    codes = torch.randint(-127, 128, (num_outputs, num_inputs), dtype=torch.int8)
    return QuantizedSlice(lambda first, last: codes[first:last], torch.rand(num_outputs, 1) + 0.5,
                          torch.zeros(num_inputs).long(), is_int8=True)


def dequantize(part: QuantizedSlice) -> Tensor:
    return part.unpack_codes(0, part.num_rows).double() * part.scales


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@given(rows=st.integers(1, 30), shape=st.sampled_from(SHAPES), num_parts=st.integers(1, 3), has_bias=st.booleans(),
       dtype=st.sampled_from([torch.float32, torch.bfloat16]), seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_products_match_float64(instruction_set: str, *, rows: int, shape: tuple[int, int], num_parts: int,
                                has_bias: bool, dtype: torch.dtype, seed: int) -> None:
    """An input may be off by half a code, 1/65534 of the largest input of its group."""
    torch.manual_seed(seed)
    parts, x = [make_quantized_slice(*shape) for _ in range(num_parts)], torch.randn(rows, shape[1]).to(dtype)
    weight = torch.cat([dequantize(part) for part in parts])
    bias = torch.randn(len(weight)).to(dtype) if has_bias else None
    expected = torch.nn.functional.linear(x.double(), weight, None if bias is None else bias.double())
    result = NativeInt8Linear(parts, bias, get_library(instruction_set)).forward_float32(x)
    largest_error = weight.abs().sum(1).max() * x.double().abs().max() / 65534
    assert result.dtype is torch.float32
    assert ((result - expected).abs() <= largest_error + 1e-6 * expected.abs().max()).all()


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@given(rows=st.integers(1, 110), first=st.integers(0, 40), threads=st.sampled_from([1, 2]),
       shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_row_has_the_same_bits_in_any_company(instruction_set: str, *, rows: int, first: int, threads: int,
                                              shape: tuple[int, int], seed: int) -> None:
    torch.manual_seed(seed)
    linear = NativeInt8Linear([make_quantized_slice(*shape)], None, get_library(instruction_set))
    x = torch.randn(150, shape[1])
    together, before = linear(x), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(linear(x[first:first + rows]), together[first:first + rows])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_panels_computed_at_once_are_those_computed_one_by_one(instruction_set: str, threads: int) -> None:
    """One row or two take several panels at once, where a part has that many."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for num_outputs in (16, 48, 64, 80, 130, 500, 1100):
            linear = NativeInt8Linear([make_quantized_slice(num_outputs, 140)], torch.randn(num_outputs),
                                      get_library(instruction_set))
            x = torch.randn(7, 140)
            together = linear(x)
            for first, last in ((0, 1), (6, 7), (2, 4)):
                assert torch.equal(linear(x[first:last]), together[first:last])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [1, 14, 17, 40, 150])
def test_all_instruction_sets_give_the_same_bits(rows: int) -> None:
    part, bias, x = make_quantized_slice(100, 901), torch.randn(100), torch.randn(rows, 901)
    results = [NativeInt8Linear([part], bias, get_library(one))(x) for one in AVAILABLE_SETS]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
def test_bfloat16_rows_are_multiplied_in_float32_and_rounded_once(instruction_set: str) -> None:
    linear = NativeInt8Linear([make_quantized_slice(100, 300)], None, get_library(instruction_set))
    x = torch.randn(5, 300).bfloat16()
    assert torch.equal(linear.forward_float32(x), linear(x.float()))
    assert torch.equal(linear(x), linear(x.float()).bfloat16())


def test_largest_sum_of_a_group_fits_into_32_bits() -> None:
    codes = torch.full((16, 256), -127, dtype=torch.int8)
    part = QuantizedSlice(lambda first, last: codes[first:last], torch.ones(16, 1), torch.zeros(256).long(),
                          is_int8=True)
    for one in AVAILABLE_SETS:
        linear = NativeInt8Linear([part], None, get_library(one))
        torch.testing.assert_close(linear(torch.ones(3, 256)), torch.full((3, 16), -127.0 * 256))
        torch.testing.assert_close(linear(-torch.ones(3, 256)), torch.full((3, 16), 127.0 * 256))


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_stays_so_and_leaves_others_alone(instruction_set: str, value: float) -> None:
    """A step finds failed sequences by their hidden states, so nothing may make them finite again."""
    linear = NativeInt8Linear([make_quantized_slice(40, 300)], None, get_library(instruction_set))
    for num_rows, row in ((3, 1), (20, 17)):
        x = torch.ones(num_rows, 300)
        expected = linear(x)
        x[row, 299] = value
        result = linear(x)
        assert result[row].isnan().all()
        others = torch.arange(num_rows) != row
        assert torch.equal(result[others], expected[others])


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-30, 1e30])
def test_small_and_large_rows_are_scaled(instruction_set: str, size: float) -> None:
    part = make_quantized_slice(20, 128)
    result = NativeInt8Linear([part], None, get_library(instruction_set))(torch.full((2, 128), size))
    expected = dequantize(part).sum(1) * size
    torch.testing.assert_close(result[0].double(), expected, rtol=1e-3, atol=1e-40)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
def test_rows_of_a_wider_tensor_are_read_where_they_are(instruction_set: str) -> None:
    linear = NativeInt8Linear([make_quantized_slice(32, 50)], None, get_library(instruction_set))
    wide = torch.randn(6, 80)
    assert torch.equal(linear(wide[:, 10:60]), linear(wide[:, 10:60].contiguous()))
    assert torch.equal(linear(wide.t()[:50].t()), linear(wide[:, :50].contiguous()))


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
def test_weights_are_packed_a_few_outputs_at_a_time(instruction_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, x = [make_quantized_slice(50, 70), make_quantized_slice(30, 70)], torch.randn(4, 70)
    expected = NativeInt8Linear(parts, None, get_library(instruction_set))(x)
    monkeypatch.setattr(native_int8_linear, "PACKED_ROWS", 32)
    assert torch.equal(NativeInt8Linear(parts, None, get_library(instruction_set))(x), expected)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
def test_no_rows_have_no_results(instruction_set: str) -> None:
    linear = NativeInt8Linear([make_quantized_slice(40, 30)], None, get_library(instruction_set))
    assert linear(torch.empty(0, 30)).shape == (0, 40)


# -- rows of bfloat16 with AMX

amx_only = pytest.mark.skipif(library is None or not library.has_amx, reason="this processor has no AMX")


def make_amx_linear(*shape: int, bias: Tensor | None = None, num_parts: int = 1) -> tuple[AmxInt8Linear, Tensor]:
    """Return a linear of random codes, and its weight in float64."""
    parts = [make_quantized_slice(*shape) for _ in range(num_parts)]
    return (AmxInt8Linear(parts, bias, get_library("amx")), torch.cat([dequantize(part) for part in parts]))


@amx_only
@given(rows=st.integers(1, 300), shape=st.sampled_from([*SHAPES, (70, 31), (33, 1000)]), num_parts=st.integers(1, 3),
       has_bias=st.booleans(), seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_amx_multiplies_the_codes_exactly(*, rows: int, shape: tuple[int, int], num_parts: int, has_bias: bool,
                                          seed: int) -> None:
    """Only sums are rounded, to float32."""
    torch.manual_seed(seed)
    bias = torch.randn(shape[0] * num_parts) if has_bias else None
    linear, weight = make_amx_linear(*shape, bias=bias, num_parts=num_parts)
    x = torch.randn(rows, shape[1]).bfloat16()
    expected = torch.nn.functional.linear(x.double(), weight, None if bias is None else bias.double())
    result = linear.forward_float32(x)
    sizes = torch.nn.functional.linear(x.double().abs(), weight.abs())
    assert ((result - expected).abs() <= 3e-6 * sizes + 1e-6).all()
    assert torch.equal(linear(x), result.bfloat16())


@amx_only
@given(rows=st.integers(1, 110), first=st.integers(0, 40), threads=st.sampled_from([1, 2]),
       shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_row_multiplied_by_amx_has_the_same_bits_in_any_company(*, rows: int, first: int, threads: int,
                                                                shape: tuple[int, int], seed: int) -> None:
    torch.manual_seed(seed)
    linear, _ = make_amx_linear(*shape)
    x = torch.randn(300, shape[1]).bfloat16()
    together, before = linear.forward_float32(x), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(linear.forward_float32(x[first:first + rows]), together[first:first + rows])
    finally:
        torch.set_num_threads(before)


@amx_only
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_amx_leaves_a_row_not_finite_and_others_alone(value: float) -> None:
    linear, _ = make_amx_linear(40, 300)
    for num_rows, row in ((3, 1), (20, 17)):
        x = torch.ones(num_rows, 300).bfloat16()
        expected = linear(x)
        x[row, 299] = value
        result = linear(x)
        assert not result[row].isfinite().any()
        others = torch.arange(num_rows) != row
        assert torch.equal(result[others], expected[others])


@amx_only
def test_amx_reads_rows_of_a_wider_tensor_where_they_are() -> None:
    linear, _ = make_amx_linear(32, 50)
    wide = torch.randn(80, 80).bfloat16()
    assert torch.equal(linear(wide[:6, 10:60]), linear(wide[:6, 10:60].contiguous()))
    assert torch.equal(linear(wide.t()[:6, :50]), linear(wide.t()[:6, :50].contiguous()))
    assert linear(wide[:0, :50]).shape == (0, 32)
    with pytest.raises(ValueError, match="needs bfloat16 rows of 50"):
        linear(wide[:, :50].float())


@amx_only
def test_codes_for_amx_are_packed_a_few_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, x = [make_quantized_slice(50, 71), make_quantized_slice(30, 71)], torch.randn(4, 71).bfloat16()
    expected = AmxInt8Linear(parts, None, get_library("amx"))(x)
    monkeypatch.setattr(native_int8_linear, "PACKED_ROWS", 32)
    assert torch.equal(AmxInt8Linear(parts, None, get_library("amx"))(x), expected)


@pytest.mark.parametrize(("instruction_set", "dtype", "expected"), [
    ("amx", torch.bfloat16, AmxInt8Linear), ("amx", torch.float32, NativeInt8Linear),
    ("avx512_bf16", torch.bfloat16, NativeInt8Linear)])
def test_linear_is_chosen_by_the_processor_and_the_type_of_rows(instruction_set: str, dtype: torch.dtype,
                                                                expected: type) -> None:
    if instruction_set not in AVAILABLE_SETS:
        pytest.skip("this processor lacks these instructions")
    linear = make_int8_linear([make_quantized_slice(16, 20)], None, dtype, get_library(instruction_set))
    assert type(linear) is expected
