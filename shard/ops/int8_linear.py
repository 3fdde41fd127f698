"""Linear with an int8 weight and one scale per output.

The codes are converted to the compute dtype in a buffer, tile by tile, and multiplied from there; the outputs are
scaled afterwards. On a CPU that packs weights, a tile's codes are stored in the layout of a packed weight, so that
filling the buffer is a mere dtype conversion, and the buffer is small enough to stay in the processor's cache. Every
tile is then multiplied like a packed weight, so a row's bits do not depend on other rows.
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from shard.ops.linear import exactly, pack, packs
from shard.quantization.format import Coded

TILE_BYTES = 4 * 2**20  # limit of a converted tile; twice as many were no faster, half as many up to 1.3 times slower
DEVICE_TILE_BYTES = 2**28  # limit on a GPU, where a tile stays in no cache and every tile costs kernel launches
ROUND_TO = 16


class Buffer(Protocol):
    """Buffer for one tile of codes, converted to the compute dtype."""

    def order(self, codes: Tensor) -> Tensor:
        """Return a copy of the codes, `[rows, columns]`, in the buffer's layout."""

    def multiply(self, x: Tensor, codes: Tensor) -> Tensor:
        """Multiply `x` with a tile of codes in the layout that `order` returns."""


class PackedBuffer:
    def __init__(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self._weight = pack(torch.zeros(shape, dtype=dtype))
        self._numbers = numbers_of(self._weight, dtype)
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def order(self, codes: Tensor) -> Tensor:
        packed = pack(codes.to(self._numbers.dtype))
        return numbers_of(packed, self._numbers.dtype).to(torch.int8)

    def multiply(self, x: Tensor, codes: Tensor) -> Tensor:
        self._numbers.copy_(codes)
        return exactly(self._multiply, x)

    def _multiply(self, x: Tensor) -> Tensor:
        product: Tensor = self._product(x, self._weight, None, "none", [], "")
        return product


class PlainBuffer:
    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        self._weight = torch.empty(shape, dtype=dtype, device=device)

    def order(self, codes: Tensor) -> Tensor:
        return codes.clone()

    def multiply(self, x: Tensor, codes: Tensor) -> Tensor:
        return functional.linear(x, self._weight.copy_(codes))


def numbers_of(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a view of a packed weight's memory. The weight must outlive the view."""
    size: int = torch.ops.mkldnn._nbytes(packed)
    memory = (ctypes.c_char * size).from_address(torch.ops.mkldnn.data_ptr(packed))
    return torch.frombuffer(memory, dtype=dtype)


@cache
def can_fill(dtype: torch.dtype) -> bool:
    """Return whether a packed weight can be overwritten in place. The operators are private to torch, so this is
    tested."""
    weight = torch.arange(-480.0, 480.0).div_(8).round_().view(48, 20)
    x = torch.eye(20, dtype=dtype)
    try:
        buffer = PackedBuffer((48, 20), dtype)
        return torch.equal(buffer.multiply(x, buffer.order(weight.to(torch.int8))).float(), weight.t())
    except (AttributeError, RuntimeError):
        return False


class Buffers:
    """Buffers by shape, shared by all linears, since these run one after the other."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._made: dict[tuple[int, int], Buffer] = {}

    def height(self, num_outputs: int, num_inputs: int) -> int:
        """Return the rows per tile, chosen such that the last tile needs little padding."""
        most = TILE_BYTES if self._device.type == "cpu" else DEVICE_TILE_BYTES
        num_tiles = -(-num_outputs * num_inputs * self._dtype.itemsize // most)
        if num_tiles <= 1:
            return num_outputs
        return -(-num_outputs // (num_tiles * ROUND_TO)) * ROUND_TO

    def get(self, num_rows: int, num_columns: int) -> Buffer:
        shape = num_rows, num_columns
        if shape not in self._made:
            self._made[shape] = self._make(shape)
        return self._made[shape]

    def _make(self, shape: tuple[int, int]) -> Buffer:
        if packs(self._dtype, self._device) and can_fill(self._dtype):
            return PackedBuffer(shape, self._dtype)
        return PlainBuffer(shape, self._dtype, self._device)


class TiledLinear:
    """Linear with an int8 weight. Scale and bias are applied in float32."""

    def __init__(self, parts: Sequence[Coded], bias: Tensor | None, buffers: Buffers) -> None:
        """The outputs are those of all parts, one after the other."""
        self._scales = torch.cat([part.scales for part in parts]).view(-1)  # [out]
        self._bias = None if bias is None else bias.float()
        num_outputs, num_inputs = len(self._scales), parts[0].num_columns
        self._height = buffers.height(num_outputs, num_inputs)
        self._buffer = buffers.get(self._height, num_inputs)
        self._tiles = [self._buffer.order(codes) for codes in tiles(parts, self._height)]

    def __call__(self, x: Tensor) -> Tensor:
        return self.unrounded(x).to(x.dtype)

    def unrounded(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, out]` in float32"""
        if len(x) == 1:  # a single row may be computed by another kernel
            return self.unrounded(x.repeat(2, 1))[:1]
        outputs = torch.empty(len(x), len(self._scales), device=x.device)
        parts = zip(self._tiles, torch.split(outputs, self._height, dim=1), torch.split(self._scales, self._height),
                    strict=True)
        for tile, output, scales in parts:
            product = self._buffer.multiply(x, tile)
            torch.mul(product[:, :len(scales)], scales, out=output)
        return outputs if self._bias is None else outputs.add_(self._bias)


def tiles(parts: Sequence[Coded], height: int) -> Iterator[Tensor]:
    """Yield the tiles of codes, `[height, in]` each, the last one padded with zeros."""
    num_outputs, num_inputs = sum(part.num_rows for part in parts), parts[0].num_columns
    for first in range(0, num_outputs, height):
        tile = torch.zeros(height, num_inputs, dtype=torch.int8, device=parts[0].scales.device)
        begin = 0
        for part in parts:
            low, high = max(first, begin), min(first + height, begin + part.num_rows)
            if low < high:
                tile[low - first:high - first] = part.unpack(low - begin, high - begin)
            begin += part.num_rows
        yield tile
