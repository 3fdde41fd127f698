"""Products of the compiled kernels against torch, and their rows alone and in company."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.instruction_sets import AVAILABLE_SETS
from torch import Tensor

from shard.native.library import NativeLibrary, load_library
from shard.ops import native_linear
from shard.ops.native_linear import (
    STORED_DTYPES,
    NativeBf16Linear,
    NativeLinear,
    choose_weight_storage_dtype,
    make_native_linear,
    pack_panels,
)

library = load_library()
pytestmark = pytest.mark.skipif(library is None, reason="there are no compiled kernels here")


def get_library(instruction_set: str) -> NativeLibrary:
    assert library is not None
    return replace(library, instruction_set=instruction_set)


def make_weight(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(num_outputs, num_inputs).to(dtype)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("dtype", STORED_DTYPES, ids=str)
@given(rows=st.integers(1, 30), num_inputs=st.sampled_from([1, 7, 64, 520, 1100]),
       num_outputs=st.sampled_from([1, 16, 33, 96, 130]), has_bias=st.booleans(), seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_products_match_float64(instruction_set: str, dtype: torch.dtype, *, rows: int, num_inputs: int,
                                num_outputs: int, has_bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    weight, x = make_weight(num_outputs, num_inputs, dtype), torch.randn(rows, num_inputs)
    bias = torch.randn(num_outputs) if has_bias else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    result = NativeLinear(weight, bias, get_library(instruction_set))(x)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=2e-6 * num_inputs)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("dtype", STORED_DTYPES, ids=str)
@given(rows=st.integers(1, 110), first=st.integers(0, 40), threads=st.sampled_from([1, 2]),
       shape=st.sampled_from([(40, 700), (96, 33), (64, 1030)]), seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_row_has_the_same_bits_in_any_company(instruction_set: str, dtype: torch.dtype, *, rows: int, first: int,
                                              threads: int, shape: tuple[int, int], seed: int) -> None:
    torch.manual_seed(seed)
    linear, x = NativeLinear(make_weight(*shape, dtype), None, get_library(instruction_set)), torch.randn(150, shape[1])
    together, before = linear(x), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(linear(x[first:first + rows]), together[first:first + rows])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("dtype", STORED_DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_panels_computed_at_once_are_those_computed_one_by_one(instruction_set: str, dtype: torch.dtype,
                                                               threads: int) -> None:
    """One row or two take several panels at once, where a part has that many."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for num_outputs in (16, 48, 64, 80, 130, 500, 1100):
            linear = NativeLinear(make_weight(num_outputs, 140, dtype), torch.randn(num_outputs),
                                  get_library(instruction_set))
            x = torch.randn(7, 140)
            together = linear(x)
            for first, last in ((0, 1), (6, 7), (2, 4)):
                assert torch.equal(linear(x[first:last]), together[first:last])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("dtype", STORED_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (16, 8), (33, 7), (100, 901), (130, 1100)])
@pytest.mark.parametrize("threads", [1, 3])
def test_weights_are_packed_in_the_layout_of_products(instruction_set: str, dtype: torch.dtype, shape: tuple[int, int],
                                                      threads: int) -> None:
    chosen = get_library(instruction_set)
    wide = make_weight(shape[0], shape[1] + 5, dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        packed = pack_panels(wide[:, 3:3 + shape[1]], chosen)
    finally:
        torch.set_num_threads(before)
    padded = torch.nn.functional.pad(wide[:, 3:3 + shape[1]], (0, 0, 0, -shape[0] % (2 * chosen.lanes)))
    halves = padded.view(-1, 2, chosen.lanes, shape[1])
    order = (0, 3, 2, 1) if dtype is torch.bfloat16 else (0, 3, 1, 2)
    assert torch.equal(packed.view(dtype), halves.permute(order).reshape(packed.shape))


def test_weights_are_kept_as_stored_where_kernels_widen_them() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [choose_weight_storage_dtype(stored, torch.float32, cpu)
            for stored in (*STORED_DTYPES, torch.float32, None)] == [*STORED_DTYPES, None, None]
    assert choose_weight_storage_dtype(torch.bfloat16, torch.bfloat16, cpu) is None
    assert choose_weight_storage_dtype(torch.bfloat16, torch.float32, cuda) is None


def test_all_instruction_sets_give_the_same_bits() -> None:
    weight, x = make_weight(100, 900, torch.bfloat16), torch.randn(9, 900)
    results = [NativeLinear(weight, None, get_library(one))(x) for one in AVAILABLE_SETS]
    assert all(torch.equal(result, results[0]) for result in results)


def test_rows_of_a_wider_tensor_are_read_where_they_are() -> None:
    linear = NativeLinear(make_weight(32, 50, torch.bfloat16), None, get_library(AVAILABLE_SETS[0]))
    wide = torch.randn(6, 80)
    assert torch.equal(linear(wide[:, 10:60]), linear(wide[:, 10:60].contiguous()))
    assert torch.equal(linear(wide.t()[:50].t()), linear(wide[:, :50].contiguous()))


@pytest.mark.parametrize("dtype", STORED_DTYPES, ids=str)
def test_weight_is_stored_in_the_type_that_holds_it(dtype: torch.dtype) -> None:
    weight = make_weight(32, 16, dtype).float()
    native_linear = make_native_linear(weight, None)
    assert native_linear is not None
    torch.testing.assert_close(native_linear(torch.eye(16)), weight.t(), rtol=0.0, atol=0.0)


def test_weight_that_needs_float32_is_left_to_torch() -> None:
    assert make_native_linear(torch.randn(32, 16), None) is None


def test_processor_without_instructions_for_bfloat16_leaves_its_rows_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_linear, "load_library", lambda: get_library("avx2"))
    assert make_native_linear(torch.randn(32, 16).bfloat16(), None) is None


@pytest.mark.parametrize("rows", [torch.ones(2, 31), torch.ones(2, 29), torch.ones(2, 30).bfloat16(), torch.ones(30)],
                         ids=["wide", "narrow", "bfloat16", "one axis"])
def test_rows_that_do_not_fit_the_weight_are_refused(rows: Tensor) -> None:
    """The kernel would read whatever lies behind them."""
    linear = NativeLinear(make_weight(40, 30, torch.bfloat16), None, get_library(AVAILABLE_SETS[0]))
    with pytest.raises(ValueError, match="float32 rows of 30, got"):
        linear(rows)


def test_no_rows_have_no_results() -> None:
    linear = NativeLinear(make_weight(40, 30, torch.bfloat16), None, get_library(AVAILABLE_SETS[0]))
    assert linear(torch.empty(0, 30)).shape == (0, 40)


# ---------------------------------------------------------------------------------------------------------------------
# Rows in bfloat16

with_each_bfloat16_set = pytest.mark.parametrize(
    "instruction_set", [name for name in ("avx512_bf16", "amx") if name in AVAILABLE_SETS])
SHAPES = [(1, 1), (32, 7), (33, 64), (96, 520), (130, 1100), (40, 2100)]


def make_bf16_linear(instruction_set: str, weight: Tensor, bias: Tensor | None = None) -> NativeBf16Linear:
    return NativeBf16Linear(weight, bias, get_library(instruction_set))


@with_each_bfloat16_set
@given(rows=st.integers(1, 40), shape=st.sampled_from(SHAPES), has_bias=st.booleans(), seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_bfloat16_products_match_float64(instruction_set: str, *, rows: int, shape: tuple[int, int], has_bias: bool,
                                         seed: int) -> None:
    torch.manual_seed(seed)
    weight, x = make_weight(*shape, torch.bfloat16), torch.randn(rows, shape[1]).bfloat16()
    bias = torch.randn(shape[0]).bfloat16() if has_bias else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    linear = make_bf16_linear(instruction_set, weight, bias)
    wide = linear.forward_float32(x)
    assert wide.dtype is torch.float32
    torch.testing.assert_close(wide.double(), expected, rtol=1e-5, atol=2e-6 * shape[1])
    assert torch.equal(linear(x), wide.bfloat16())


@with_each_bfloat16_set
@given(rows=st.integers(1, 110), first=st.integers(0, 40), threads=st.sampled_from([1, 2]),
       shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_bfloat16_row_has_the_same_bits_in_any_company(instruction_set: str, *, rows: int, first: int, threads: int,
                                                       shape: tuple[int, int], seed: int) -> None:
    torch.manual_seed(seed)
    linear = make_bf16_linear(instruction_set, make_weight(*shape, torch.bfloat16))
    x = torch.randn(290, shape[1]).bfloat16()
    together, before = linear(x), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(linear(x[first:first + rows]), together[first:first + rows])
    finally:
        torch.set_num_threads(before)


@with_each_bfloat16_set
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("num_rows", "row"), [(3, 1), (17, 16), (33, 20), (40, 39)])
def test_bfloat16_row_that_is_not_finite_stays_so_and_leaves_others_alone(
        instruction_set: str, value: float, num_rows: int, row: int) -> None:
    linear = make_bf16_linear(instruction_set, make_weight(64, 50, torch.bfloat16).abs() + 1)
    x = torch.randn(num_rows, 50).bfloat16()
    expected = linear.forward_float32(x)
    x[row, 3] = value
    result = linear.forward_float32(x)
    assert not result[row].isfinite().any()
    others = torch.arange(num_rows) != row
    assert torch.equal(result[others], expected[others])


@with_each_bfloat16_set
def test_bfloat16_rows_of_a_wider_tensor_are_read_where_they_are(instruction_set: str) -> None:
    linear = make_bf16_linear(instruction_set, make_weight(32, 50, torch.bfloat16))
    wide = torch.randn(6, 80).bfloat16()
    assert torch.equal(linear(wide[:, 10:60]), linear(wide[:, 10:60].contiguous()))
    assert torch.equal(linear(wide.t()[:50].t()), linear(wide[:, :50].contiguous()))


@with_each_bfloat16_set
def test_no_bfloat16_rows_have_no_results(instruction_set: str) -> None:
    linear = make_bf16_linear(instruction_set, make_weight(40, 30, torch.bfloat16))
    assert linear(torch.empty(0, 30, dtype=torch.bfloat16)).shape == (0, 40)
