"""Linears with an int8 weight and one scale per output, by the kernels of `int8_products.c` and `amx_bf16_products.c`
in `shard/native/`.

The first one quantizes each row to int16 and adds exact integers; the second one multiplies bfloat16 rows as they are.
A row's bits depend on the row alone: docs/concepts/exactness.md, "Products with independent rows".
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from shard.native.huge_pages import allocate_in_huge_pages
from shard.native.library import ACTIVATION_DTYPES, NativeLibrary, allocate_result
from shard.ops.int8_linear import iter_code_tiles
from shard.ops.native_linear import (
    AMX_TILE_INPUTS,
    BF16_PANEL_OUTPUTS,
    Bf16RowsLinear,
    PackingArguments,
    round_up,
)
from shard.quantization.quantization_format import QuantizedSlice

PANEL_OUTPUTS, GROUP_INPUTS = 16, 128  # as in int8_product.h
AMX_TILE_OUTPUTS = 16  # as TILE_ROWS in amx_tiles.h
PACKED_ROWS = 64 * PANEL_OUTPUTS  # outputs that are packed at once; a multiple of both kinds of panels


class Int16RowsArguments(ctypes.Structure):
    """`Int16Rows` in int16_rows.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("numbers", "codes", "scales", "sums")),
        *((name, ctypes.c_int64) for name in ("num_rows", "row_inputs", "stride", "inputs", "group_inputs",
                                              "is_bfloat16"))]


class Int8ProductArguments(ctypes.Structure):
    """`Int8Product` in int8_product.h."""

    _fields_: ClassVar = [
        ("rows", Int16RowsArguments),
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "bias", "y")),
        *((name, ctypes.c_int64) for name in ("panels", "y_stride"))]


class RoundingArguments(ctypes.Structure):
    """`Rounding` in rounding.c."""

    _fields_: ClassVar = [*((name, ctypes.c_void_p) for name in ("numbers", "rounded")),
                          *((name, ctypes.c_int64) for name in ("rows", "width", "stride"))]


class Int16Rows:
    """Memory for rows that a kernel quantizes to int16. It must live until the call is over."""

    def __init__(self, x: Tensor, num_inputs: int, padded_inputs: int, group_inputs: int) -> None:
        if x.shape[1:] != (num_inputs,):  # the kernel cannot tell
            raise ValueError(f"needs rows of {num_inputs}, got {tuple(x.shape)}")
        numbers = x if x.dtype in ACTIVATION_DTYPES else x.float()
        self._numbers = numbers if numbers.stride(-1) == 1 else numbers.contiguous()
        self._codes = allocate_result(len(x), padded_inputs, dtype=torch.int16)
        self._scales = allocate_result(len(x), padded_inputs // group_inputs)
        self._sums = allocate_result(len(x), padded_inputs // group_inputs, dtype=torch.int32)
        self.arguments = Int16RowsArguments(
            self._numbers.data_ptr(), self._codes.data_ptr(), self._scales.data_ptr(), self._sums.data_ptr(), len(x),
            x.shape[1], self._numbers.stride(0), padded_inputs, group_inputs,
            self._numbers.dtype is torch.bfloat16)


class NativeInt8Linear:
    """Linear with int8 codes in panels. Scale and bias are applied in float32."""

    def __init__(self, quantized_slices: Sequence[QuantizedSlice], bias: Tensor | None, library: NativeLibrary) -> None:
        """The outputs are those of all parts, one after the other."""
        scales = torch.cat([part.scales for part in quantized_slices]).view(-1)
        self._num_outputs, self._num_inputs = len(scales), quantized_slices[0].num_columns
        self._padded_inputs = round_up(self._num_inputs, GROUP_INPUTS)
        self._padded_outputs = round_up(self._num_outputs, PANEL_OUTPUTS)
        self._scales = pad_with_zeros(scales, self._padded_outputs)
        self._bias = None if bias is None else pad_with_zeros(bias.float(), self._padded_outputs)
        self._panels = allocate_in_huge_pages(
            (self._padded_outputs // PANEL_OUTPUTS, self._padded_inputs // 2, PANEL_OUTPUTS, 2), torch.int8)
        tiles = iter_code_tiles(quantized_slices, min(PACKED_ROWS, self._padded_outputs))
        for tile, panels in zip(tiles, torch.split(self._panels, PACKED_ROWS // PANEL_OUTPUTS), strict=True):
            pack_pairs(tile, panels, library)
        self._library = library

    def __call__(self, x: Tensor) -> Tensor:
        return convert_results(self._multiply(x)[:, :self._num_outputs], x.dtype, self._library)

    def forward_float32(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, out]` in float32"""
        return convert_results(self._multiply(x)[:, :self._num_outputs], torch.float32, self._library)

    def _multiply(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, padded_outputs]` in float32"""
        rows = Int16Rows(x, self._num_inputs, self._padded_inputs, GROUP_INPUTS)
        y = allocate_result(len(x), self._padded_outputs)
        self._library.multiply_int8(Int8ProductArguments(
            rows.arguments, self._panels.data_ptr(), self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(), y.data_ptr(), len(self._panels), y.stride(0)))
        return y


class AmxInt8Linear(Bf16RowsLinear):
    """Linear with int8 codes for bfloat16 rows. AMX multiplies the codes as bfloat16, which holds them exactly."""

    def __init__(self, quantized_slices: Sequence[QuantizedSlice], bias: Tensor | None, library: NativeLibrary) -> None:
        """The outputs are those of all parts, one after the other."""
        scales = torch.cat([part.scales for part in quantized_slices]).view(-1)
        num_outputs, num_inputs = len(scales), quantized_slices[0].num_columns
        padded_outputs = round_up(num_outputs, BF16_PANEL_OUTPUTS)
        panels = allocate_in_huge_pages(
            (padded_outputs // BF16_PANEL_OUTPUTS, round_up(num_inputs, AMX_TILE_INPUTS) // 2,
             BF16_PANEL_OUTPUTS // AMX_TILE_OUTPUTS, 2, AMX_TILE_OUTPUTS), torch.int8)
        tiles = iter_code_tiles(quantized_slices, min(PACKED_ROWS, padded_outputs))
        for tile, part in zip(tiles, torch.split(panels, PACKED_ROWS // BF16_PANEL_OUTPUTS), strict=True):
            pack_tile_rows(tile, part)
        super().__init__((num_outputs, num_inputs), panels, pad_with_zeros(scales, padded_outputs), bias, library)


def make_int8_linear(quantized_slices: Sequence[QuantizedSlice], bias: Tensor | None, dtype: torch.dtype,
                     library: NativeLibrary) -> NativeInt8Linear | AmxInt8Linear:
    """`dtype`: that of the rows"""
    linear_class = AmxInt8Linear if library.has_amx and dtype is torch.bfloat16 else NativeInt8Linear
    return linear_class(quantized_slices, bias, library)


def convert_results(y: Tensor, dtype: torch.dtype, library: NativeLibrary) -> Tensor:
    """Return float32 results `[rows, out]`, which may have padding behind each row, as contiguous rows of `dtype`."""
    if dtype is not torch.bfloat16:
        return y.contiguous().to(dtype)
    rounded = allocate_result(*y.shape, dtype=torch.bfloat16)
    library.round_to_bfloat16(RoundingArguments(y.data_ptr(), rounded.data_ptr(), *y.shape, y.stride(0)),
                              num_results=y.numel())
    return rounded


def pack_pairs(codes: Tensor, panels: Tensor, library: NativeLibrary) -> None:
    """Pack codes `[outputs, in]` into zeroed panels `[panels, in / 2, PANEL_OUTPUTS, 2]`. A pair of codes is a number
    of 16 bits to the kernel."""
    pairs = (functional.pad(codes, (0, 1)) if codes.shape[1] % 2 else codes.contiguous()).view(torch.int16)
    library.pack(PackingArguments(
        pairs.data_ptr(), panels.data_ptr(), min(len(pairs), len(panels) * PANEL_OUTPUTS), pairs.shape[1], len(panels),
        PANEL_OUTPUTS, pairs.stride(0), panels.stride(0) // 2, shares_words=False))


def pack_tile_rows(codes: Tensor, panels: Tensor) -> None:
    """Pack codes `[outputs, in]` into zeroed panels `[panels, in / 2, tiles, 2, AMX_TILE_OUTPUTS]`. There may be more
    codes than the panels have room for; those are padding."""
    num_panels, num_pairs = len(panels), -(-codes.shape[1] // 2)
    pairs = functional.pad(codes, (0, codes.shape[1] % 2))[:num_panels * BF16_PANEL_OUTPUTS]
    panels[:, :num_pairs] = pairs.view(num_panels, -1, AMX_TILE_OUTPUTS, num_pairs, 2).permute(0, 3, 1, 4, 2)


def pad_with_zeros(values: Tensor, length: int) -> Tensor:
    padded = torch.zeros(length)
    padded[:len(values)] = values
    return padded
