"""Linears with weights of 16 bits by the kernels of `shard/native/`: `products.c` for rows in float32,
`bf16_products.c` and `amx_bf16_products.c` for rows in bfloat16.

The order in which a row's sums are made follows from the number of inputs alone, whatever other rows there are:
docs/concepts/exactness.md, "Products with independent rows".
"""

import ctypes
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from shard.native.huge_pages import allocate_in_huge_pages, pack_contiguously
from shard.native.library import AMX_TILE_ROWS, NativeLibrary, allocate_result, load_library

BF16_PANEL_OUTPUTS = 32  # as in bf16_product.h
AMX_TILE_INPUTS = 32  # as in amx_bf16_products.c
STORED_DTYPES = (torch.bfloat16, torch.float16)  # in the order of preference


class ProductArguments(ctypes.Structure):
    """`Product` in products.c."""

    _fields_: ClassVar = [("x", ctypes.c_void_p), ("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p),
                          ("y", ctypes.c_void_p), ("rows", ctypes.c_int64), ("inputs", ctypes.c_int64),
                          ("panels", ctypes.c_int64), ("x_stride", ctypes.c_int64), ("y_stride", ctypes.c_int64)]


class PackingArguments(ctypes.Structure):
    """`Packing` in packing.c."""

    _fields_: ClassVar = [("weight", ctypes.c_void_p), ("packed", ctypes.c_void_p),
                          *((name, ctypes.c_int64) for name in ("outputs", "inputs", "panels", "panel_outputs",
                                                                "weight_stride", "panel_stride", "shares_words"))]


class NativeLinear:
    """Linear with a packed weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, library: NativeLibrary) -> None:
        """`weight: [out, in]`, of one of STORED_DTYPES, is copied."""
        self._num_outputs, self._num_inputs = weight.shape
        self._panels = pack_panels(weight, library)
        self._padded_outputs = len(self._panels) * 2 * library.lanes
        self._bias = None if bias is None else torch.zeros(self._padded_outputs)
        if self._bias is not None and bias is not None:
            self._bias[:len(bias)] = bias
        self._library = library
        self._is_float16 = weight.dtype is torch.float16

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward_float32(x)

    def forward_float32(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, out]`, both in float32"""
        if (x.dtype, x.shape[1:]) != (torch.float32, (self._num_inputs,)):  # the kernel cannot tell
            raise ValueError(f"needs float32 rows of {self._num_inputs}, got {x.dtype} {tuple(x.shape)}")
        x = x if x.stride(-1) == 1 else x.contiguous()
        y = allocate_result(len(x), self._padded_outputs)
        arguments = ProductArguments(
            x.data_ptr(), self._panels.data_ptr(), None if self._bias is None else self._bias.data_ptr(), y.data_ptr(),
            len(x), self._num_inputs, len(self._panels), x.stride(0), y.stride(0))
        self._library.multiply(arguments, is_float16=self._is_float16)
        return y if self._padded_outputs == self._num_outputs else y[:, :self._num_outputs].contiguous()


class Bf16ProductArguments(ctypes.Structure):
    """`Bf16Product` in bf16_product.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "codes", "scales", "bias", "y", "rounded", "tiles")),
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "panels", "x_stride", "y_stride", "x_inputs"))]


class Bf16RowsLinear:
    """Linear with packed weights for bfloat16 rows, summed in float32."""

    def __init__(self, shape: tuple[int, int], panels: Tensor, scales: Tensor | None, bias: Tensor | None,
                 library: NativeLibrary) -> None:
        """`shape`: [out, in]; `panels`: as bf16_product.h describes them, of bfloat16 or, with the scales of the padded
        outputs, of int8."""
        self._num_outputs, self._num_inputs = shape
        self._padded_outputs, self._padded_inputs = len(panels) * BF16_PANEL_OUTPUTS, panels.shape[1] * 2
        self._panels, self._scales = panels, scales
        self._bias = None if bias is None else functional.pad(bias.float(),
                                                              (0, self._padded_outputs - self._num_outputs))
        self._library = library

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, out]`, both in bfloat16"""
        rounded = allocate_result(len(x), self._padded_outputs, dtype=torch.bfloat16)
        self._multiply(x, None if self._library.has_amx else allocate_result(len(x), self._padded_outputs), rounded)
        return self._remove_padding(rounded)

    def forward_float32(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, out]`, the result in float32"""
        y = allocate_result(len(x), self._padded_outputs)
        self._multiply(x, y, None)
        return self._remove_padding(y)

    def _multiply(self, x: Tensor, y: Tensor | None, rounded: Tensor | None) -> None:
        """Write the results to `y`, or to `rounded` if it is given."""
        if (x.dtype, x.shape[1:]) != (torch.bfloat16, (self._num_inputs,)):  # the kernel cannot tell
            raise ValueError(f"needs bfloat16 rows of {self._num_inputs}, got {x.dtype} {tuple(x.shape)}")
        tiles = None
        if self._library.has_amx:  # the kernel pads the rows
            tiles = allocate_result(round_up(len(x), AMX_TILE_ROWS), self._padded_inputs, dtype=torch.bfloat16)
        elif self._padded_inputs > self._num_inputs:
            x = functional.pad(x, (0, self._padded_inputs - self._num_inputs))
        x = x if x.stride(-1) == 1 else x.contiguous()
        weights = [None, self._panels, self._scales] if self._scales is not None else [self._panels, None, None]
        self._library.multiply_bfloat16(Bf16ProductArguments(
            *(None if tensor is None else tensor.data_ptr() for tensor in (x, *weights, self._bias, y, rounded, tiles)),
            len(x), self._padded_inputs, len(self._panels), x.stride(0), self._padded_outputs, self._num_inputs))

    def _remove_padding(self, y: Tensor) -> Tensor:
        return y if self._padded_outputs == self._num_outputs else y[:, :self._num_outputs].contiguous()


class NativeBf16Linear(Bf16RowsLinear):
    """Linear with a bfloat16 weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, library: NativeLibrary) -> None:
        """`weight: [out, in]` is copied."""
        num_outputs, num_inputs = weight.shape
        # inputs are multiplied in pairs, or in tiles
        padded_inputs = round_up(num_inputs, AMX_TILE_INPUTS if library.has_amx else 2)
        padded = functional.pad(weight, (0, padded_inputs - num_inputs, 0, -num_outputs % BF16_PANEL_OUTPUTS))
        pairs = padded.view(torch.int16).view(-1, BF16_PANEL_OUTPUTS, padded_inputs // 2, 2)
        super().__init__((num_outputs, num_inputs), pack_contiguously(pairs.transpose(1, 2)), None, bias, library)


def round_up(number: int, divisor: int) -> int:
    return -(-number // divisor) * divisor


def pack_panels(weight: Tensor, library: NativeLibrary) -> Tensor:
    """Return the weight in the layout that products.c describes, `[panels, inputs, 2 * lanes]`; missing outputs of the
    last panel are zeros."""
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    num_outputs, num_inputs = weight.shape
    panel_outputs = 2 * library.lanes
    packed = allocate_in_huge_pages((-(-num_outputs // panel_outputs), num_inputs, panel_outputs), torch.int16)
    library.pack(PackingArguments(weight.data_ptr(), packed.data_ptr(), num_outputs, num_inputs, len(packed),
                                  panel_outputs, weight.stride(0), packed.stride(0), weight.dtype is torch.bfloat16))
    return packed


def has_native_matmul(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether there are compiled kernels for rows of `dtype` on this device."""
    if device.type != "cpu" or dtype not in {torch.float32, torch.bfloat16} or (library := load_library()) is None:
        return False
    return dtype is torch.float32 or library.multiplies_bfloat16


def bytes_per_stored_weight(checkpoint_dtype: torch.dtype, dtype: torch.dtype, device: torch.device) -> int:
    """Return the bytes of a number in the weights of a model that computes in `dtype`."""
    keeps_checkpoint_dtype = dtype is torch.float32 and has_native_matmul(dtype, device)
    return (checkpoint_dtype if keeps_checkpoint_dtype else dtype).itemsize


def choose_weight_storage_dtype(stored_dtype: torch.dtype | None, dtype: torch.dtype,
                                device: torch.device) -> torch.dtype | None:
    """Return the dtype in which a model that computes in `dtype` keeps weights as they are stored; None if they are to
    be read in `dtype`. `stored_dtype`: None if it is not the same for all."""
    is_kept = dtype is torch.float32 and stored_dtype in STORED_DTYPES and has_native_matmul(dtype, device)
    return stored_dtype if is_kept else None


def make_native_mixed_dtype_linear(weight: Tensor, bias: Tensor | None) -> NativeLinear:
    """Return a linear for float32 rows with a weight of one of STORED_DTYPES, which is copied."""
    library = load_library()
    assert library is not None, "choose_weight_storage_dtype has found it"
    return NativeLinear(weight, bias, library)


def make_native_linear(weight: Tensor, bias: Tensor | None) -> NativeLinear | NativeBf16Linear | None:
    """Return a linear of compiled kernels; None if there are none for the weight. A float32 weight is kept in the first
    of STORED_DTYPES that holds all its values."""
    if not has_native_matmul(weight.dtype, weight.device) or (library := load_library()) is None:
        return None
    if weight.dtype is torch.bfloat16:
        return NativeBf16Linear(weight, bias, library)
    for dtype in STORED_DTYPES:
        narrow = weight.to(dtype)
        if torch.equal(narrow.float(), weight):
            return NativeLinear(narrow, bias, library)
    return None
