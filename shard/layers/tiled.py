"""Products with a weight that is kept as signed bytes, one scale for each output.

Rows of codes are made into numbers in a buffer, a tile after the other, and multiplied from there. The codes of a tile
lie in the order that a packed weight has, so that filling the buffer is a mere conversion, and it is small enough to
stay in the processor's cache. Every tile is multiplied as a packed weight is: a row's bits do not depend on others.
Knows nothing of ranks, nor of where codes come from.
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from shard.layers.linear import exactly, pack, packs
from shard.quantization.coded import Coded

TILE_BYTES = 4 * 2**20  # of numbers, at most; twice as many were no faster, half as many up to 1.3 times slower
DEVICE_TILE_BYTES = 2**28  # where there is no such cache, and every step of a tile has to be started
ROUND_TO = 16


class Buffer(Protocol):
    """Room for the numbers of a tile."""

    def order(self, codes: Tensor) -> Tensor:
        """`[rows, columns]` of codes, to be kept as the buffer wants them"""

    def multiply(self, x: Tensor, codes: Tensor) -> Tensor:
        """With what `order` gave."""


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
    """The memory of a packed weight, which must outlive what is returned."""
    size: int = torch.ops.mkldnn._nbytes(packed)
    memory = (ctypes.c_char * size).from_address(torch.ops.mkldnn.data_ptr(packed))
    return torch.frombuffer(memory, dtype=dtype)


@cache
def can_fill(dtype: torch.dtype) -> bool:
    """Whether numbers can be put into a packed weight, and are what is multiplied then: the operators are torch's own
    affair."""
    weight = torch.arange(-480.0, 480.0).div_(8).round_().view(48, 20)
    x = torch.eye(20, dtype=dtype)
    try:
        buffer = PackedBuffer((48, 20), dtype)
        return torch.equal(buffer.multiply(x, buffer.order(weight.to(torch.int8))).float(), weight.t())
    except (AttributeError, RuntimeError):
        return False


class Buffers:
    """One for each shape: products are made one after the other."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._made: dict[tuple[int, int], Buffer] = {}

    def height(self, num_outputs: int, num_inputs: int) -> int:
        """Tiles are about equally high, so that the last one is hardly filled up."""
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
    """Results are in float32 until they have their scale and their bias."""

    def __init__(self, parts: Sequence[Coded], bias: Tensor | None, buffers: Buffers) -> None:
        """The outputs of all parts, one after the other."""
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
        if len(x) == 1:  # alone, a row may be computed in another way
            return self.unrounded(x.repeat(2, 1))[:1]
        outputs = torch.empty(len(x), len(self._scales), device=x.device)
        parts = zip(self._tiles, torch.split(outputs, self._height, dim=1), torch.split(self._scales, self._height),
                    strict=True)
        for tile, output, scales in parts:
            product = self._buffer.multiply(x, tile)
            torch.mul(product[:, :len(scales)], scales, out=output)
        return outputs if self._bias is None else outputs.add_(self._bias)


def tiles(parts: Sequence[Coded], height: int) -> Iterator[Tensor]:
    """`[height, in]` each; behind the last output are zeros"""
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
