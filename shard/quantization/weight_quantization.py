"""Quantization of weights while they are loaded: by a compiled kernel on a CPU, else by torch, with the same bits.

int8 has one scale for each output, int4 one for each output and group of inputs. A scale is not finite where a weight
is not.
"""

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from shard.native.library import NativeLibrary, load_library

MAX_CODE = 127
NUM_INT4_STEPS = 15  # between the least and the largest code of four bits
FORMAT_BY_DTYPE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in quantizing.c


class QuantizingArguments(ctypes.Structure):
    """`Quantizing` in quantizing.c."""

    _fields_: ClassVar = [*((name, ctypes.c_void_p) for name in ("weight", "codes", "scales")),
                          *((name, ctypes.c_int64) for name in ("rows", "inputs", "first_column", "columns", "format",
                                                                "group_inputs"))]


def find_readable_dtype(stored_dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the dtype in which a weight is to be read: its own if the kernel takes it."""
    if stored_dtype is None or stored_dtype not in FORMAT_BY_DTYPE or find_library(device) is None:
        return torch.float32
    return stored_dtype


def find_library(device: torch.device) -> NativeLibrary | None:
    return load_library() if device.type == "cpu" else None


def quantize_to_int8(weight: Tensor, columns: range, codes: Tensor, scales: Tensor) -> None:
    """Write the codes of some columns of a weight `[rows, in]` to `codes: [rows, columns]`, and to `scales: [rows, 1]`
    those of whole rows."""
    library = find_library(weight.device)
    if library is not None:
        library.quantize(make_arguments(weight, columns, codes, scales, group_size=0))
        return
    weight = weight.float()
    largest = weight.abs().amax(dim=1, keepdim=True)
    scales.copy_(largest.div_(MAX_CODE).masked_fill_(largest == 0, 1.0))  # 1 for a row of zeros
    codes.copy_(weight[:, columns.start:columns.stop].div(scales).round_().clamp_(-MAX_CODE, MAX_CODE))


def quantize_to_int4(weight: Tensor, columns: range, codes: Tensor, scales: Tensor, group_size: int) -> None:
    """Write the codes of some columns of a weight `[rows, in]` to `codes: [rows, columns]`, and the scales of their
    groups to `scales: [rows, columns / group_size]`. A group's codes go from its least weight to its largest, and one
    of them stands for zero."""
    library = find_library(weight.device)
    if library is not None:
        library.quantize(make_arguments(weight, columns, codes, scales, group_size))
        return
    groups = weight[:, columns.start:columns.stop].float().reshape(len(weight), -1, group_size)
    least, largest = groups.amin(-1, keepdim=True).clamp_(max=0), groups.amax(-1, keepdim=True).clamp_(min=0)
    scale = (largest - least).div_(NUM_INT4_STEPS)
    scale.masked_fill_(scale == 0, 1.0)  # for a group of zeros
    least_code = (least / scale).round_()
    codes.copy_((groups / scale).round_().clamp_(least_code, least_code + NUM_INT4_STEPS).view_as(codes))
    scales.copy_(scale[..., 0])


def make_arguments(weight: Tensor, columns: range, codes: Tensor, scales: Tensor,
                   group_size: int) -> QuantizingArguments:
    if not (weight.is_contiguous() and codes.is_contiguous() and scales.is_contiguous()):
        raise ValueError("needs contiguous rows")  # the kernel cannot tell
    return QuantizingArguments(weight.data_ptr(), codes.data_ptr(), scales.data_ptr(), *weight.shape, columns.start,
                               len(columns), FORMAT_BY_DTYPE[weight.dtype], group_size)
