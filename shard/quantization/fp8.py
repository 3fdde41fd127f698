"""`quant_method` fp8: eight-bit floats with one scale per weight, per output or per block; and scales per tensor, row,
group or block, which compressed-tensors shares. Only weights are quantized. Activations and KV cache are not, even if
the checkpoint was made for that.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from shard.json_config import JsonConfig
from shard.quantization.integer_unpacking import make_consecutive_groups, read_stored_slice
from shard.quantization.quantization_format import MatrixSlice, QuantizedSlice, TensorReader

ACTIVATION_SCALE_SUFFIXES = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".kv_scale", ".q_scale",
                             ".output_scale")
FLOAT8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
BlockShape = tuple[int, int]  # rows and columns that share a scale


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """Reader of fp8 weights (`QuantizationFormat`)."""

    block_shape: BlockShape | None

    @property
    def description(self) -> str:
        blocks = "" if self.block_shape is None else f" in blocks of {self.block_shape[0]} x {self.block_shape[1]}"
        return f"fp8{blocks}, activations not quantized"

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        stored = reader.find_dtype_and_shape(weight_name)
        return stored is not None and stored[0] in FLOAT8_DTYPES

    def read_slice(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
        stored = reader.find_dtype_and_shape(matrix_slice.weight_name)
        assert stored is not None
        scale_inv_name = f"{matrix_slice.weight_name}_scale_inv"  # despite the name a factor, not a divisor
        name = scale_inv_name if reader.find_dtype_and_shape(scale_inv_name) else f"{matrix_slice.weight_name}_scale"
        return read_float8_slice(reader, matrix_slice, stored[0],
                                 *read_scales(reader, name, matrix_slice, self.block_shape))

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:  # noqa: ARG002 - the name decides
        return tensor_name.endswith(ACTIVATION_SCALE_SUFFIXES)


def parse_fp8_config(quant_config: JsonConfig) -> Fp8Format:
    quant_config.require_supported("fmt", quant_config.get("fmt") or "e4m3", ("e4m3", "e5m2"))
    return Fp8Format(parse_block_shape(quant_config, "weight_block_size"))


def parse_block_shape(quant_config: JsonConfig, key: str) -> BlockShape | None:
    """Return the rows and columns of a block, or None without blocks."""
    value = quant_config.get(key)
    match value:
        case None:
            return None
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            raise ValueError(f"{quant_config.source}: {key} must be two whole numbers of at least 1, got {value}")


def read_float8_slice(reader: TensorReader, matrix_slice: MatrixSlice, dtype: torch.dtype, scales: Tensor,
                      column_groups: Tensor) -> QuantizedSlice:
    """Return the quantized slice of eight-bit floats, whose "codes" are their values in float32.

    Values are looked up in a table, since torch's conversion takes several times as long.
    """
    byte_codes = read_stored_slice(reader, matrix_slice.weight_name, matrix_slice.shape, matrix_slice.rows,
                                   matrix_slice.columns, dtype=dtype).view(torch.uint8)
    value_table = torch.arange(256, dtype=torch.uint8, device=byte_codes.device).view(dtype).float()

    def unpack_codes(first: int, last: int) -> Tensor:
        part = byte_codes[first:last]
        return value_table.index_select(0, part.reshape(-1).int()).view(part.shape)

    return QuantizedSlice(unpack_codes, scales, column_groups, is_int8=False)


def read_scales(reader: TensorReader, scale_name: str, matrix_slice: MatrixSlice, block_shape: BlockShape | None,
                dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return the scales, `[rows, groups]`, and the group of each column."""
    stored, (outputs, inputs) = reader.find_dtype_and_shape(scale_name), matrix_slice.shape
    shape = stored[1] if stored else (outputs, 1)  # if the tensor is missing, reading it below raises the error
    if prod(shape) == 1 and outputs > 1:
        scales = reader.read_tensor(scale_name, shape, dtype).reshape(1, 1).expand(len(matrix_slice.rows), 1)
        return scales.contiguous(), make_consecutive_groups(matrix_slice, inputs, reader.device)
    if block_shape is not None:
        return read_block_scales(reader, scale_name, matrix_slice, block_shape)
    check_scales_shape(scale_name, shape, matrix_slice)
    scales = reader.read_rows(scale_name, shape, matrix_slice.rows, dtype).view(len(matrix_slice.rows), -1)
    return scales, make_consecutive_groups(matrix_slice, inputs // scales.shape[1], reader.device)


def read_block_scales(reader: TensorReader, scale_name: str, matrix_slice: MatrixSlice,
                      block_shape: BlockShape) -> tuple[Tensor, Tensor]:
    height, width = block_shape
    block_scales = reader.read_tensor(
        scale_name, (-(-matrix_slice.shape[0] // height), -(-matrix_slice.shape[1] // width)), torch.float32)
    rows = torch.arange(matrix_slice.rows.start, matrix_slice.rows.stop, device=reader.device) // height
    return block_scales.index_select(0, rows), make_consecutive_groups(matrix_slice, width, reader.device)


def check_scales_shape(scale_name: str, shape: tuple[int, ...], matrix_slice: MatrixSlice) -> None:
    outputs, inputs = matrix_slice.shape
    match shape:
        case (rows,) | (rows, 1) if rows == outputs:
            return
        case (rows, groups) if rows == outputs and groups and inputs % groups == 0:
            return
    raise ValueError(
        f"{scale_name} is {list(shape)}, which does not fit a weight of {list(matrix_slice.shape)}; supported: one "
        f"scale for all, [{outputs}, 1], or [{outputs}, groups] with equal groups")
