"""Linear with an int8 weight and one scale per output.

The codes are converted to the compute dtype in a buffer, tile by tile, and multiplied from there; the outputs are
scaled afterwards. On a CPU that packs weights, a tile's codes are stored in the layout of a packed weight, so that
filling the buffer is a mere dtype conversion, and the buffer is small enough to stay in the processor's cache. Every
tile is then multiplied like a packed weight: docs/concepts/exactness.md, "Products with independent rows".
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from shard.ops.unquantized_linear import PackedLinear, apply_to_repeated_row, pack_weight, should_pack
from shard.quantization.quantization_format import QuantizedSlice

TILE_BYTES = 4 * 2**20  # limit of a converted tile; twice as many were no faster, half as many up to 1.3 times slower
GPU_TILE_BYTES = 2**28  # limit on a GPU, where a tile stays in no cache and every tile costs kernel launches
TILE_ROWS_MULTIPLE = 16


class PackedDequantBuffer:
    """Buffer for one tile of codes, converted to the compute dtype, in the layout of a packed weight, for CPUs that
    pack weights."""

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self._linear = PackedLinear(torch.zeros(shape, dtype=dtype), None)
        self._memory_view = view_packed_memory(self._linear.weight, dtype)

    def arrange_codes(self, codes: Tensor) -> Tensor:
        """Return a copy of the codes, `[rows, columns]`, in the buffer's layout."""
        packed = pack_weight(codes.to(self._memory_view.dtype))
        return view_packed_memory(packed, self._memory_view.dtype).to(torch.int8)

    def multiply_codes(self, x: Tensor, codes: Tensor) -> Tensor:
        """Multiply `x` with a tile of codes in the layout that `arrange_codes` returns."""
        self._memory_view.copy_(codes)
        return self._linear(x)


class PlainDequantBuffer:
    """Buffer that is an ordinary tensor."""

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        self._weight = torch.empty(shape, dtype=dtype, device=device)

    def arrange_codes(self, codes: Tensor) -> Tensor:
        return codes.clone()

    def multiply_codes(self, x: Tensor, codes: Tensor) -> Tensor:
        return functional.linear(x, self._weight.copy_(codes))


DequantBuffer = PackedDequantBuffer | PlainDequantBuffer


def view_packed_memory(packed_weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a view of a packed weight's memory. The weight must outlive the view."""
    size: int = torch.ops.mkldnn._nbytes(packed_weight)
    memory = (ctypes.c_char * size).from_address(torch.ops.mkldnn.data_ptr(packed_weight))
    return torch.frombuffer(memory, dtype=dtype)


@cache
def can_overwrite_packed_weight(dtype: torch.dtype) -> bool:
    """Return whether a packed weight can be overwritten in place. The operators are private to torch, so this is
    tested."""
    weight = torch.arange(-480.0, 480.0).div_(8).round_().view(48, 20)
    x = torch.eye(20, dtype=dtype)
    try:
        buffer = PackedDequantBuffer((48, 20), dtype)
        return torch.equal(buffer.multiply_codes(x, buffer.arrange_codes(weight.to(torch.int8))).float(), weight.t())
    except (AttributeError, RuntimeError):
        return False


class DequantBuffers:
    """Buffers by shape, shared by all linears, since these run one after the other."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._buffers_by_shape: dict[tuple[int, int], DequantBuffer] = {}

    def choose_tile_rows(self, num_outputs: int, num_inputs: int) -> int:
        """Return the rows per tile, chosen such that the last tile needs little padding."""
        max_bytes = TILE_BYTES if self._device.type == "cpu" else GPU_TILE_BYTES
        num_tiles = -(-num_outputs * num_inputs * self._dtype.itemsize // max_bytes)
        if num_tiles <= 1:
            return num_outputs
        return -(-num_outputs // (num_tiles * TILE_ROWS_MULTIPLE)) * TILE_ROWS_MULTIPLE

    def get_buffer(self, num_rows: int, num_columns: int) -> DequantBuffer:
        shape = num_rows, num_columns
        if shape not in self._buffers_by_shape:
            is_packed = should_pack(self._dtype, self._device) and can_overwrite_packed_weight(self._dtype)
            self._buffers_by_shape[shape] = (PackedDequantBuffer(shape, self._dtype) if is_packed
                                             else PlainDequantBuffer(shape, self._dtype, self._device))
        return self._buffers_by_shape[shape]


class Int8Linear:
    """Linear with an int8 weight. Scale and bias are applied in float32."""

    def __init__(self, quantized_slices: Sequence[QuantizedSlice], bias: Tensor | None,
                 buffers: DequantBuffers) -> None:
        """The outputs are those of all parts, one after the other."""
        self._scales = torch.cat([part.scales for part in quantized_slices]).view(-1)  # [out]
        self._bias = None if bias is None else bias.float()
        num_outputs, num_inputs = len(self._scales), quantized_slices[0].num_columns
        self._tile_rows = buffers.choose_tile_rows(num_outputs, num_inputs)
        self._buffer = buffers.get_buffer(self._tile_rows, num_inputs)
        self._code_tiles = [self._buffer.arrange_codes(codes)
                            for codes in iter_code_tiles(quantized_slices, self._tile_rows)]

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward_float32(x).to(x.dtype)

    def forward_float32(self, x: Tensor) -> Tensor:
        """`[rows, in] -> [rows, out]` in float32"""
        if len(x) == 1:
            return apply_to_repeated_row(self.forward_float32, x)
        outputs = torch.empty(len(x), len(self._scales), device=x.device)
        parts = zip(self._code_tiles, torch.split(outputs, self._tile_rows, dim=1),
                    torch.split(self._scales, self._tile_rows), strict=True)
        for tile, output, scales in parts:
            product = self._buffer.multiply_codes(x, tile)
            torch.mul(product[:, :len(scales)], scales, out=output)
        return outputs if self._bias is None else outputs.add_(self._bias)


def iter_code_tiles(quantized_slices: Sequence[QuantizedSlice], tile_rows: int) -> Iterator[Tensor]:
    """Yield the tiles of codes, `[tile_rows, in]` each, the last one padded with zeros."""
    num_outputs, num_inputs = sum(part.num_rows for part in quantized_slices), quantized_slices[0].num_columns
    for first in range(0, num_outputs, tile_rows):
        tile = torch.empty(tile_rows, num_inputs, dtype=torch.int8, device=quantized_slices[0].scales.device)
        tile[num_outputs - first:] = 0
        begin = 0
        for part in quantized_slices:
            low, high = max(first, begin), min(first + tile_rows, begin + part.num_rows)
            if low < high:
                tile[low - first:high - first] = part.unpack_codes(low - begin, high - begin)
            begin += part.num_rows
        yield tile
