"""Products with weights of four bits by compiled kernels."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.instruction_sets import AVAILABLE_SETS
from torch import Tensor

from shard.native.library import NativeLibrary, load_library
from shard.ops import native_int4_linear
from shard.ops.native_int4_linear import NativeInt4Linear, can_keep_int4
from shard.quantization.quantization_format import QuantizedSlice

library = load_library()
pytestmark = pytest.mark.skipif(library is None, reason="there are no compiled kernels here")
# outputs, inputs, inputs of a group; the last is 0 for one scale per output
SHAPES = [(1, 8, 8), (16, 64, 32), (33, 96, 32), (40, 120, 24), (96, 256, 128), (20, 512, 256), (30, 7, 0),
          (17, 300, 0)]


def get_library(instruction_set: str) -> NativeLibrary:
    assert library is not None
    return replace(library, instruction_set=instruction_set)


def make_column_groups(num_inputs: int, group_size: int, *, is_ordered: bool) -> Tensor:
    column_groups = torch.arange(num_inputs) // (group_size or num_inputs)
    return column_groups if is_ordered else column_groups[torch.randperm(num_inputs)]


def make_quantized_slice(num_outputs: int, num_inputs: int, group_size: int,
                         column_groups: Tensor | None = None) -> QuantizedSlice:
    """Make codes of four bits from which zero points of 0 to 16 have been subtracted."""
    if column_groups is None:
        column_groups = make_column_groups(num_inputs, group_size, is_ordered=True)
    num_groups = int(column_groups.max()) + 1
    zero_points = torch.randint(0, 17, (num_outputs, num_groups))
    codes = (torch.randint(0, 16, (num_outputs, num_inputs)) - zero_points[:, column_groups]).to(torch.int8)
    return QuantizedSlice(lambda first, last: codes[first:last], torch.rand(num_outputs, num_groups) + 0.5,
                          column_groups, is_int8=True, is_int4=True)


def dequantize(part: QuantizedSlice) -> Tensor:
    return part.unpack_codes(0, part.num_rows).double() * part.scales[:, part.column_groups]


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@given(rows=st.integers(1, 30), shape=st.sampled_from(SHAPES), num_parts=st.integers(1, 2), has_bias=st.booleans(),
       is_ordered=st.booleans(), dtype=st.sampled_from([torch.float32, torch.bfloat16]), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_products_match_float64(instruction_set: str, *, rows: int, shape: tuple[int, int, int], num_parts: int,
                                has_bias: bool, is_ordered: bool, dtype: torch.dtype, seed: int) -> None:
    """An input may be off by half a code, 1/65534 of the largest input of its group."""
    torch.manual_seed(seed)
    column_groups = make_column_groups(*shape[1:], is_ordered=is_ordered)
    parts = [make_quantized_slice(*shape, column_groups) for _ in range(num_parts)]
    assert can_keep_int4(parts)
    x, weight = torch.randn(rows, shape[1]).to(dtype), torch.cat([dequantize(part) for part in parts])
    bias = torch.randn(len(weight)).to(dtype) if has_bias else None
    expected = torch.nn.functional.linear(x.double(), weight, None if bias is None else bias.double())
    result = NativeInt4Linear(parts, bias, get_library(instruction_set)).forward_float32(x)
    largest_error = weight.abs().sum(1).max() * x.double().abs().max() / 65534
    assert result.dtype is torch.float32
    assert ((result - expected).abs() <= largest_error + 1e-6 * expected.abs().max()).all()


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@given(rows=st.integers(1, 110), first=st.integers(0, 40), threads=st.sampled_from([1, 2]),
       shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_row_has_the_same_bits_in_any_company(instruction_set: str, *, rows: int, first: int, threads: int,
                                              shape: tuple[int, int, int], seed: int) -> None:
    torch.manual_seed(seed)
    linear = NativeInt4Linear([make_quantized_slice(*shape)], None, get_library(instruction_set))
    x = torch.randn(150, shape[1])
    together, before = linear(x), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(linear(x[first:first + rows]), together[first:first + rows])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("rows", [3, 14, 150])
def test_all_instruction_sets_give_the_same_bits(group_size: int, rows: int) -> None:
    part, x = make_quantized_slice(100, 1280, group_size), torch.randn(rows, 1280)
    results = [NativeInt4Linear([part], None, get_library(one))(x) for one in AVAILABLE_SETS]
    assert all(torch.equal(result, results[0]) for result in results)


def test_largest_sum_of_a_group_fits_into_32_bits() -> None:
    codes = torch.full((16, 256), 15, dtype=torch.int8)
    codes[:, 0] = 0  # so that zero points do not take part
    part = QuantizedSlice(lambda first, last: codes[first:last], torch.ones(16, 1), torch.zeros(256).long(),
                          is_int8=True, is_int4=True)
    for one in AVAILABLE_SETS:
        for rows in (3, 20):
            result = NativeInt4Linear([part], None, get_library(one))(torch.ones(rows, 256))
            torch.testing.assert_close(result, torch.full((rows, 16), 15.0 * 255))


@pytest.mark.parametrize("first_code", [-127, -112, -16, 0, 75, 112])
def test_codes_far_from_zero_are_multiplied_exactly(first_code: int) -> None:
    """A zero point of AMX must fit in a byte beside any code; others are left to vectors."""
    codes = first_code + torch.arange(16, dtype=torch.int8).repeat(16, 8)
    part = QuantizedSlice(lambda first, last: codes[first:last], torch.ones(16, 1), torch.zeros(128).long(),
                          is_int8=True, is_int4=True)
    for one in AVAILABLE_SETS:
        result = NativeInt4Linear([part], None, get_library(one))(torch.ones(5, 128))
        torch.testing.assert_close(result, torch.full((5, 16), float(codes[0].sum())))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
def test_a_row_that_is_not_finite_stays_so_and_leaves_others_alone(value: float, instruction_set: str) -> None:
    linear = NativeInt4Linear([make_quantized_slice(40, 320, 64)], None, get_library(instruction_set))
    x = torch.ones(5, 320)
    expected = linear(x)
    x[1, 319] = value
    result = linear(x)
    assert result[1].isnan().all()
    assert torch.equal(result[::2], expected[::2])


def test_weights_are_packed_a_few_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, x = [make_quantized_slice(50, 64, 32), make_quantized_slice(30, 64, 32)], torch.randn(4, 64)
    expected = NativeInt4Linear(parts, None, get_library(AVAILABLE_SETS[0]))(x)
    monkeypatch.setattr(native_int4_linear, "PACKED_ROWS", 16)
    assert torch.equal(NativeInt4Linear(parts, None, get_library(AVAILABLE_SETS[0]))(x), expected)


def test_a_weight_takes_half_a_byte() -> None:
    linear = NativeInt4Linear([make_quantized_slice(64, 256, 128)], None, get_library(AVAILABLE_SETS[0]))
    assert linear.packed_weight.nbytes == 64 * 256 // 2


@pytest.mark.parametrize(("part", "is_kept"), [
    (make_quantized_slice(4, 256, 128), True), (make_quantized_slice(4, 36, 12), False),
    (make_quantized_slice(4, 384, 192), False), (make_quantized_slice(4, 250, 128), False),
    (make_quantized_slice(4, 250, 0), True), (replace(make_quantized_slice(4, 256, 128), is_int4=False), False)])
def test_other_groups_are_not_kept(part: QuantizedSlice, is_kept: bool) -> None:
    assert can_keep_int4([part]) == is_kept


def test_parts_with_other_groups_are_not_kept_together() -> None:
    first, other = make_quantized_slice(4, 256, 64), make_quantized_slice(4, 256, 128)
    reordered = make_quantized_slice(4, 256, 64, make_column_groups(256, 64, is_ordered=False))
    assert can_keep_int4([first, first])
    assert not can_keep_int4([first, other])
    assert not can_keep_int4([first, reordered])


def test_no_rows_have_no_results() -> None:
    linear = NativeInt4Linear([make_quantized_slice(40, 64, 32)], None, get_library(AVAILABLE_SETS[0]))
    assert linear(torch.empty(0, 64)).shape == (0, 40)
