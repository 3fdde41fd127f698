"""Quantization of weights while they are loaded: by a compiled kernel on a CPU, else by torch, which gives the same
bits on a CPU. On a GPU a quotient may differ in the last bit.

int8 has one scale for each output, int4 one for each output and group of inputs. A scale is not finite where a weight
is not.
"""

import ctypes
import functools
from typing import ClassVar

import torch
from torch import Tensor

from shard.native.library import NativeLibrary, load_library

MAX_CODE = 127
NUM_INT4_STEPS = 15  # between the least and the largest code of four bits
RANGE_FRACTIONS = 0.9375, 0.875  # of a group's range that are tried as well, as in quantizing.c
NUM_SUMS = 8  # into which the kernel splits a sum
FORMAT_BY_DTYPE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in quantizing.c


class QuantizingArguments(ctypes.Structure):
    """`Quantizing` in quantizing.c."""

    _fields_: ClassVar = [*((name, ctypes.c_void_p) for name in ("weight", "codes", "scales")),
                          *((name, ctypes.c_int64) for name in ("rows", "inputs", "first_column", "columns", "format",
                                                                "group_inputs"))]


def choose_weight_read_dtype(stored_dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the dtype in which a weight is to be read: its own if the kernel takes it."""
    if stored_dtype is None or stored_dtype not in FORMAT_BY_DTYPE or load_cpu_kernels(device) is None:
        return torch.float32
    return stored_dtype


def load_cpu_kernels(device: torch.device) -> NativeLibrary | None:
    return load_library() if device.type == "cpu" else None


def quantize_to_int8(weight: Tensor, columns: range, codes: Tensor, scales: Tensor) -> None:
    """Write the codes of some columns of a weight `[rows, in]` to `codes: [rows, columns]`, and to `scales: [rows, 1]`
    those of whole rows."""
    library = load_cpu_kernels(weight.device)
    if library is not None:
        library.quantize(make_arguments(weight, columns, codes, scales, group_size=0))
        return
    weight = weight.float()
    largest = weight.abs().amax(dim=1, keepdim=True)
    scales.copy_(largest.div_(MAX_CODE).masked_fill_(largest == 0, 1.0))  # 1 for a row of zeros
    codes.copy_(weight[:, columns.start:columns.stop].div(scales).round_().clamp_(-MAX_CODE, MAX_CODE))


def quantize_to_int4(weight: Tensor, columns: range, codes: Tensor, scales: Tensor, group_size: int) -> None:
    """Write the codes of some columns of a weight `[rows, in]` to `codes: [rows, columns]`, and the scales of their
    groups to `scales: [rows, columns / group_size]`. A group's codes go from a fraction of its least weight to that of
    its largest, whichever fraction has the least error, and one of them stands for zero."""
    library = load_cpu_kernels(weight.device)
    if library is not None:
        library.quantize(make_arguments(weight, columns, codes, scales, group_size))
        return
    groups = weight[:, columns.start:columns.stop].float().reshape(len(weight), -1, group_size)
    least, largest = groups.amin(-1, keepdim=True).clamp_(max=0), groups.amax(-1, keepdim=True).clamp_(min=0)
    best_codes, best_scale = round_to_int4(groups, least, largest)
    least_error = sum_squared_errors(groups, best_codes, best_scale)
    for fraction in RANGE_FRACTIONS:
        narrower_codes, scale = round_to_int4(groups, least * fraction, largest * fraction)
        error = sum_squared_errors(groups, narrower_codes, scale)
        is_better = error < least_error
        best_codes, best_scale = narrower_codes.where(is_better, best_codes), scale.where(is_better, best_scale)
        least_error = error.where(is_better, least_error)
    codes.copy_(best_codes.view_as(codes))
    scales.copy_(best_scale[..., 0])


def round_to_int4(groups: Tensor, least: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes `[rows, groups, inputs]` that go from the least to the largest value, and scales
    `[rows, groups, 1]`."""
    scale = (largest - least).div_(NUM_INT4_STEPS)
    scale.masked_fill_(scale == 0, 1.0)  # for a group of zeros
    least_code = (least / scale).round_()
    return (groups / scale).round_().clamp_(least_code, least_code + NUM_INT4_STEPS), scale


def sum_squared_errors(groups: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """Return the sum of squares of what rounding changes in each group, `[rows, groups, 1]`, added in the kernel's
    order."""
    squares = (codes * scale).sub_(groups).square_()
    sums = squares.view(*squares.shape[:-1], -1, NUM_SUMS).unbind(-2)
    lanes = functools.reduce(torch.add, sums).unbind(-1)
    return functools.reduce(torch.add, lanes).unsqueeze(-1)


def make_arguments(weight: Tensor, columns: range, codes: Tensor, scales: Tensor,
                   group_size: int) -> QuantizingArguments:
    if not (weight.is_contiguous() and codes.is_contiguous() and scales.is_contiguous()):
        raise ValueError("needs contiguous rows")  # the kernel cannot tell
    return QuantizingArguments(weight.data_ptr(), codes.data_ptr(), scales.data_ptr(), *weight.shape, columns.start,
                               len(columns), FORMAT_BY_DTYPE[weight.dtype], group_size)
