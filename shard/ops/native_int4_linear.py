"""Linear with a weight of four bits, and a scale and a zero for each output and group of inputs, by the kernels of
`shard/native/int4_products.c` and `amx_int4_products.c`.

They quantize each row to int16 and add exact integers, so a row's bits depend on the row alone:
docs/concepts/exactness.md, "Products with independent rows".
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from shard.native.huge_pages import allocate_in_huge_pages
from shard.native.library import AMX_TILE_ROWS, NativeLibrary, allocate_result
from shard.ops.int8_linear import iter_code_tiles
from shard.ops.native_int8_linear import Int16Rows, Int16RowsArguments, convert_results, pad_with_zeros
from shard.ops.native_linear import round_up
from shard.quantization.quantization_format import QuantizedSlice

PANEL_OUTPUTS = 16  # as in int4_product.h
AMX_PANELS_AT_ONCE = 2  # as in amx_int4_products.c
AMX_TILE_INPUTS = 64  # as in amx_int16_tiles.h; groups are a multiple
MAX_AMX_ZERO = 112  # a code minus a zero must fit in a byte
MIN_AMX_ROWS = 4  # with fewer, unpacking into tiles takes longer than it saves
MAX_GROUP_INPUTS = 128  # as in int16_rows.h
GROUP_INPUTS_MULTIPLE = 8  # as in int16_rows.h
PACKED_ROWS = 64 * PANEL_OUTPUTS  # outputs that are packed at once


class Int4ProductArguments(ctypes.Structure):
    """`Int4Product` in int4_product.h."""

    _fields_: ClassVar = [
        ("rows", Int16RowsArguments),
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "zeros", "bias", "y", "tiles")),
        *((name, ctypes.c_int64) for name in ("panels", "y_stride"))]


class Int4PackingArguments(ctypes.Structure):
    """`Int4Packing` in packing.c."""

    _fields_: ClassVar = [*((name, ctypes.c_void_p) for name in ("codes", "packed", "zeros")),
                          *((name, ctypes.c_int64) for name in ("outputs", "inputs", "panels", "groups",
                                                                "group_inputs", "code_stride"))]


def can_keep_int4(quantized_slices: Sequence[QuantizedSlice]) -> bool:
    """Return whether `NativeInt4Linear` multiplies these weights: codes of four bits with one scale for whole rows, or
    with equal groups of a multiple of 8 inputs up to 128, or of a multiple of 128."""
    if not all(part.is_int4 for part in quantized_slices):
        return False
    layouts = [part.find_group_layout() for part in quantized_slices]
    first = layouts[0]
    if first is None or any(layout is None or not torch.equal(layout.groups, first.groups) for layout in layouts):
        return False
    if len(first.groups) == 1:
        return True
    if len({None if layout is None or layout.column_order is None else tuple(layout.column_order.tolist())
            for layout in layouts}) > 1:
        return False
    return first.group_size % MAX_GROUP_INPUTS == 0 or (
        first.group_size % GROUP_INPUTS_MULTIPLE == 0 and first.group_size < MAX_GROUP_INPUTS)


class NativeInt4Linear:
    """Linear with codes of four bits in panels."""

    def __init__(self, quantized_slices: Sequence[QuantizedSlice], bias: Tensor | None, library: NativeLibrary) -> None:
        """The outputs are those of all parts, one after the other. `can_keep_int4` must hold for them."""
        layout = quantized_slices[0].find_group_layout()
        assert layout is not None
        self._num_outputs = sum(part.num_rows for part in quantized_slices)
        self._num_inputs = quantized_slices[0].num_columns
        self._group_inputs = MAX_GROUP_INPUTS if len(layout.groups) == 1 else min(layout.group_size, MAX_GROUP_INPUTS)
        self._input_order = layout.column_order
        self._padded_inputs = round_up(self._num_inputs, self._group_inputs)
        has_amx_groups = library.has_amx and self._group_inputs % AMX_TILE_INPUTS == 0
        self._padded_outputs = round_up(self._num_outputs,
                                        PANEL_OUTPUTS * (AMX_PANELS_AT_ONCE if has_amx_groups else 1))
        num_groups, num_panels = self._padded_inputs // self._group_inputs, self._padded_outputs // PANEL_OUTPUTS
        scales = torch.cat([part.scales.index_select(1, layout.groups) for part in quantized_slices])
        repeated_scales = scales.repeat_interleave(num_groups // len(layout.groups), dim=1)  # [outputs, groups]
        padded_scales = torch.zeros(self._padded_outputs, num_groups)
        padded_scales[:self._num_outputs] = repeated_scales
        self._scales = padded_scales.view(num_panels, PANEL_OUTPUTS, num_groups).transpose(1, 2).contiguous()
        self._bias = None if bias is None else pad_with_zeros(bias.float(), self._padded_outputs)
        self.packed_weight = allocate_in_huge_pages(
            (num_panels, self._padded_inputs // 4, PANEL_OUTPUTS, 2), torch.uint8)
        self._zeros = torch.zeros(num_panels, num_groups, PANEL_OUTPUTS, dtype=torch.int8)
        self._library = library
        self._pack(quantized_slices)
        self._can_use_amx = (has_amx_groups and int(self._zeros.min()) >= -MAX_AMX_ZERO
                             and int(self._zeros.max()) <= MAX_AMX_ZERO)

    def _pack(self, quantized_slices: Sequence[QuantizedSlice]) -> None:
        parts = zip(iter_code_tiles(quantized_slices, min(PACKED_ROWS, self._padded_outputs)),
                    torch.split(self.packed_weight, PACKED_ROWS // PANEL_OUTPUTS),
                    torch.split(self._zeros, PACKED_ROWS // PANEL_OUTPUTS), strict=True)
        for tile, panels, zeros in parts:
            codes = tile[:len(panels) * PANEL_OUTPUTS]
            if self._input_order is not None:
                codes = codes.index_select(1, self._input_order)
            codes = codes.contiguous()
            self._library.pack_int4(Int4PackingArguments(
                codes.data_ptr(), panels.data_ptr(), zeros.data_ptr(), len(codes), codes.shape[1], len(panels),
                zeros.shape[1], self._group_inputs, codes.stride(0)))

    def __call__(self, x: Tensor) -> Tensor:
        return convert_results(self._multiply(x)[:, :self._num_outputs], x.dtype, self._library)

    def forward_float32(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, out]` in float32"""
        return convert_results(self._multiply(x)[:, :self._num_outputs], torch.float32, self._library)

    def _multiply(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, padded_outputs]` in float32"""
        if self._input_order is not None:
            x = x.index_select(1, self._input_order)
        rows = Int16Rows(x, self._num_inputs, self._padded_inputs, self._group_inputs)
        y = allocate_result(len(x), self._padded_outputs)
        tiles = (allocate_result(round_up(len(x), AMX_TILE_ROWS), 2 * self._padded_inputs, dtype=torch.uint8)
                 if self._can_use_amx and len(x) >= MIN_AMX_ROWS else None)
        self._library.multiply_int4(Int4ProductArguments(
            rows.arguments, self.packed_weight.data_ptr(), self._scales.data_ptr(), self._zeros.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(), y.data_ptr(),
            None if tiles is None else tiles.data_ptr(), len(self.packed_weight), y.stride(0)),
            uses_amx=tiles is not None)
        return y
