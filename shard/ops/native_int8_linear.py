"""Linear with an int8 weight and one scale per output, by the kernels of `int8_products.c` and `amx_int8_products.c` in
`shard/native/`.

They quantize each row to int16 and add exact integers, so a row's bits depend on the row alone:
docs/concepts/exactness.md, "Products with independent rows".
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from shard.native.library import ACTIVATION_DTYPES, AMX_TILE_ROWS, NativeLibrary, allocate_result
from shard.native.packed_memory import allocate_packed
from shard.ops.int8_linear import iter_code_tiles
from shard.ops.native_linear import PackingArguments, round_up
from shard.quantization.quantization_format import QuantizedSlice

PANEL_OUTPUTS, GROUP_INPUTS = 16, 128  # as in int8_product.h
AMX_PANELS_AT_ONCE = 2  # as in amx_int8_products.c and amx_int4_products.c
PACKED_ROWS = 64 * PANEL_OUTPUTS  # outputs that are packed at once; a multiple of the panels computed at once


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
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "bias", "y", "tiles")),
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
        self._padded_outputs = round_up(self._num_outputs,
                                        PANEL_OUTPUTS * (AMX_PANELS_AT_ONCE if library.has_amx else 1))
        self._scales = pad_with_zeros(scales, self._padded_outputs)
        self._bias = None if bias is None else pad_with_zeros(bias.float(), self._padded_outputs)
        codes_at_once, pack = (4, pack_quads) if library.has_amx else (2, partial(pack_pairs, library=library))
        self._panels = allocate_packed((self._padded_outputs // PANEL_OUTPUTS, self._padded_inputs // codes_at_once,
                                        PANEL_OUTPUTS, codes_at_once), torch.int8)
        tiles = iter_code_tiles(quantized_slices, min(PACKED_ROWS, self._padded_outputs))
        for tile, panels in zip(tiles, torch.split(self._panels, PACKED_ROWS // PANEL_OUTPUTS), strict=True):
            pack(tile, panels)
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
        tiles = (allocate_result(round_up(len(x), AMX_TILE_ROWS), 2 * self._padded_inputs, dtype=torch.uint8)
                 if self._library.has_amx else None)
        self._library.multiply_int8(Int8ProductArguments(
            rows.arguments, self._panels.data_ptr(), self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(), y.data_ptr(),
            None if tiles is None else tiles.data_ptr(), len(self._panels), y.stride(0)))
        return y


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


def pack_quads(codes: Tensor, panels: Tensor) -> None:
    """Pack codes `[outputs, in]` into zeroed panels `[panels, in / 4, PANEL_OUTPUTS, 4]`. There may be more codes than
    the panels have room for; those are padding."""
    num_quads = -(-codes.shape[1] // 4)
    quads = functional.pad(codes, (0, 4 * num_quads - codes.shape[1])).view(torch.int32)
    rows = quads[:len(panels) * PANEL_OUTPUTS].view(len(panels), PANEL_OUTPUTS, num_quads)
    panels.view(torch.int32)[:, :num_quads, :, 0] = rows.transpose(1, 2)


def pad_with_zeros(values: Tensor, length: int) -> Tensor:
    padded = torch.zeros(length)
    padded[:len(values)] = values
    return padded
