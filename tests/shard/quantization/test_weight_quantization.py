"""Tests of the quantization of weights: the kernel gives the bits of torch."""

import pytest
import torch
from torch import Tensor

from shard.native.library import load_library
from shard.quantization import weight_quantization
from shard.quantization.weight_quantization import (
    FORMAT_BY_DTYPE,
    choose_weight_read_dtype,
    quantize_to_int4,
    quantize_to_int8,
)

CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(load_library() is None, reason="there are no compiled kernels")
DTYPES = pytest.mark.parametrize("dtype", [*FORMAT_BY_DTYPE])


def make_weight(num_rows: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """Return a weight with ties between two codes, and with a row and a group of zeros."""
    weight = torch.randn(num_rows, num_inputs, generator=torch.Generator().manual_seed(num_inputs)) * 0.02
    weight[0] = torch.arange(num_inputs).remainder(255).sub(127).mul(0.5)
    weight[1] = 0
    weight[2, :32] = 0
    return weight.to(dtype)


def quantize(weight: Tensor, columns: range, group_size: int) -> tuple[Tensor, Tensor]:
    """Quantize to int4 with this group size; 0: to int8."""
    codes = torch.empty(len(weight), len(columns), dtype=torch.int8)
    scales = torch.empty(len(weight), len(columns) // group_size if group_size else 1)
    if group_size:
        quantize_to_int4(weight, columns, codes, scales, group_size)
    else:
        quantize_to_int8(weight, columns, codes, scales)
    return codes, scales


@needs_kernels
@DTYPES
@pytest.mark.parametrize(("num_inputs", "columns", "group_size"), [
    (64, range(64), 0), (300, range(300), 0), (300, range(3, 262), 0), (33, range(5, 6), 0), (64, range(64), 8),
    (96, range(32, 96), 32), (48, range(16, 48), 16),
    (256, range(64, 256), 64)])
def test_kernel_gives_the_bits_of_torch(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, num_inputs: int,
                                        columns: range, group_size: int) -> None:
    weight = make_weight(37, num_inputs, dtype)
    codes, scales = quantize(weight, columns, group_size)
    monkeypatch.setattr(weight_quantization, "load_library", lambda: None)
    expected_codes, expected_scales = quantize(weight, columns, group_size)
    assert torch.equal(codes, expected_codes)
    assert torch.equal(scales, expected_scales)


@DTYPES
@pytest.mark.parametrize("has_kernels", [pytest.param(True, marks=needs_kernels), False])
@pytest.mark.parametrize("group_size", [0, 16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weight_that_is_not_finite_has_a_scale_that_is_not(
        monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, *, has_kernels: bool, group_size: int,
        value: float) -> None:
    if not has_kernels:
        monkeypatch.setattr(weight_quantization, "load_library", lambda: None)
    weight = make_weight(5, 64, dtype)
    weight[3, 50] = value
    _, scales = quantize(weight, range(64), group_size)
    is_wrong = torch.zeros(scales.shape, dtype=torch.bool)
    is_wrong[3, 50 // group_size if group_size else 0] = True
    assert torch.equal(scales.isfinite(), ~is_wrong)


def test_weights_are_read_as_stored_where_the_kernel_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_weight_read_dtype(torch.float64, CPU) is choose_weight_read_dtype(None, CPU) is torch.float32
    assert choose_weight_read_dtype(torch.bfloat16, torch.device("meta")) is torch.float32
    if load_library() is not None:
        assert [choose_weight_read_dtype(dtype, CPU) for dtype in FORMAT_BY_DTYPE] == [*FORMAT_BY_DTYPE]
    monkeypatch.setattr(weight_quantization, "load_library", lambda: None)
    assert choose_weight_read_dtype(torch.bfloat16, CPU) is torch.float32


@needs_kernels
def test_rows_that_are_not_contiguous_are_rejected() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        quantize(torch.zeros(8, 4).T, range(8), 0)
