"""Linear with a weight of 16 bits, multiplied with float32 rows by the kernels of `shard/native/products.c`.

A row's sums are made in the order of the inputs, whatever other rows there are: docs/concepts/exactness.md, "Products
with independent rows".
"""

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from shard.native.library import NativeLibrary, load_library

STORED_DTYPES = (torch.bfloat16, torch.float16)  # in the order of preference


class ProductArguments(ctypes.Structure):
    """`Product` in products.c."""

    _fields_: ClassVar = [("x", ctypes.c_void_p), ("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p),
                          ("y", ctypes.c_void_p), ("rows", ctypes.c_int64), ("inputs", ctypes.c_int64),
                          ("panels", ctypes.c_int64), ("x_stride", ctypes.c_int64), ("y_stride", ctypes.c_int64)]


class NativeLinear:
    """Linear with a packed weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, library: NativeLibrary) -> None:
        """`weight: [out, in]`, of one of STORED_DTYPES, is copied."""
        self._num_outputs, self._num_inputs = weight.shape
        self._panels = pack_panels(weight, library.lanes)
        self._padded_outputs = len(self._panels) * 2 * library.lanes
        self._bias = None if bias is None else torch.zeros(self._padded_outputs)
        if self._bias is not None and bias is not None:
            self._bias[:len(bias)] = bias
        self._library = library
        self._is_float16 = weight.dtype is torch.float16

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, out]`, both in float32"""
        x = x if x.stride(-1) == 1 else x.contiguous()
        y = torch.empty(len(x), self._padded_outputs)
        arguments = ProductArguments(
            x.data_ptr(), self._panels.data_ptr(), None if self._bias is None else self._bias.data_ptr(), y.data_ptr(),
            len(x), self._num_inputs, len(self._panels), x.stride(0), y.stride(0))
        self._library.multiply(arguments, is_float16=self._is_float16)
        return y if self._padded_outputs == self._num_outputs else y[:, :self._num_outputs].contiguous()


def pack_panels(weight: Tensor, lanes: int) -> Tensor:
    """Return the weight in the layout that products.c describes; missing outputs of the last panel are zeros."""
    num_outputs, num_inputs = weight.shape
    num_panels = -(-num_outputs // (2 * lanes))
    padded = weight if num_panels * 2 * lanes == num_outputs else torch.cat(
        [weight, weight.new_zeros(num_panels * 2 * lanes - num_outputs, num_inputs)])
    halves = padded.view(torch.int16).view(num_panels, 2, lanes, num_inputs)
    order = (0, 3, 2, 1) if weight.dtype is torch.bfloat16 else (0, 3, 1, 2)
    return halves.permute(order).contiguous()


def has_native_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether there are compiled kernels for rows of `dtype` on this device."""
    return dtype is torch.float32 and device.type == "cpu" and load_library() is not None


def count_stored_bytes(checkpoint_dtype: torch.dtype, dtype: torch.dtype, device: torch.device) -> int:
    """Return the bytes of a number in the weights of a model that computes in `dtype`."""
    return (checkpoint_dtype if has_native_products(dtype, device) else dtype).itemsize


def make_native_linear(weight: Tensor, bias: Tensor | None) -> NativeLinear | None:
    """Return a linear for a float32 weight on a CPU whose values all fit one of STORED_DTYPES; None if they do not, or
    if there are no compiled kernels."""
    if not has_native_products(weight.dtype, weight.device) or (library := load_library()) is None:
        return None
    for dtype in STORED_DTYPES:
        narrow = weight.to(dtype)
        if torch.equal(narrow.float(), weight):
            return NativeLinear(narrow, bias, library)
    return None
