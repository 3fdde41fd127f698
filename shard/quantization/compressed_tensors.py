"""compressed-tensors as written by llm-compressor: packed integers, one integer per byte, or eight-bit floats.

Whether a weight is quantized follows from the stored tensors: weights named in `ignore` are stored unquantized.
weight_packed [out, in / n] and weight_zero_point [out / n, groups] in 32-bit words of n codes, weight_scale [out,
groups], weight_g_idx [in]. Only weights are read; activations are not quantized, even if the checkpoint asks for it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shard.json_config import JsonConfig
from shard.quantization.fp8 import (
    ACTIVATION_SCALE_SUFFIXES,
    FLOAT8_DTYPES,
    BlockShape,
    parse_block_shape,
    read_float8_slice,
    read_scales,
)
from shard.quantization.gptq_and_awq import check_column_groups
from shard.quantization.integer_unpacking import (
    SUPPORTED_BITS,
    find_word_range,
    make_zero_point_slice,
    read_stored_slice,
    select_code_range,
    unpack_words,
)
from shard.quantization.quantization_format import MatrixSlice, QuantizedSlice, TensorReader

SUPPORTED_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision",
                     "dense")
SUPPORTED_STRATEGIES = ("tensor", "channel", "group", "block")


@dataclass(frozen=True, slots=True)
class CompressedTensorsFormat:
    """Reader of weights written by llm-compressor (`QuantizationFormat`)."""

    format_names: tuple[str, ...]
    bits: tuple[int, ...]
    block_shape: BlockShape | None

    @property
    def description(self) -> str:
        widths = " and ".join(map(str, self.bits))
        return f"compressed-tensors, {' and '.join(self.format_names)}, {widths} bits, activations not quantized"

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        stored = reader.find_dtype_and_shape(weight_name)
        if stored is None:
            return weight_name.endswith(".weight") and reader.find_dtype_and_shape(f"{weight_name}_packed") is not None
        return stored[0] in {*FLOAT8_DTYPES, torch.int8}

    def read_slice(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
        scales, groups = read_scales(reader, f"{matrix_slice.weight_name}_scale", matrix_slice, self.block_shape)
        stored = reader.find_dtype_and_shape(matrix_slice.weight_name)
        if stored is None:
            return read_packed_slice(reader, matrix_slice, scales,
                                     read_group_of_each_column(reader, matrix_slice, scales, groups))
        if stored[0] in FLOAT8_DTYPES:
            return read_float8_slice(reader, matrix_slice, stored[0], scales, groups)
        column_groups = read_group_of_each_column(reader, matrix_slice, scales, groups)
        return read_int8_slice(reader, matrix_slice, scales, column_groups)

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:  # noqa: ARG002 - the name decides
        return tensor_name.endswith((*ACTIVATION_SCALE_SUFFIXES, ".input_zero_point", ".input_g_idx"))


def read_packed_slice(reader: TensorReader, matrix_slice: MatrixSlice, scales: Tensor,
                      column_groups: Tensor) -> QuantizedSlice:
    reader.ignore_tensor(f"{matrix_slice.weight_name}_shape")  # known from config.json
    name, (outputs, inputs) = f"{matrix_slice.weight_name}_packed", matrix_slice.shape
    bits = find_bits_per_code(reader, name, matrix_slice.shape)
    per_word = 32 // bits
    packed = read_stored_slice(reader, name, (outputs, -(-inputs // per_word)), matrix_slice.rows,
                               find_word_range(matrix_slice.columns, per_word))

    def read_codes(first: int, last: int) -> Tensor:
        return select_code_range(unpack_words(packed[first:last], bits), matrix_slice.columns, per_word)

    return make_zero_point_slice(read_codes, read_zero_points(reader, matrix_slice, scales, bits), scales,
                                 column_groups, bits)


def read_int8_slice(reader: TensorReader, matrix_slice: MatrixSlice, scales: Tensor,
                    column_groups: Tensor) -> QuantizedSlice:
    held = read_stored_slice(reader, matrix_slice.weight_name, matrix_slice.shape, matrix_slice.rows,
                             matrix_slice.columns, dtype=torch.int8)

    def read_codes(first: int, last: int) -> Tensor:
        return held[first:last].view(torch.uint8) ^ 128  # adds 128: unsigned codes

    zero_points = read_zero_points(reader, matrix_slice, scales, 8)
    return make_zero_point_slice(read_codes, zero_points, scales, column_groups, 8)


def find_bits_per_code(reader: TensorReader, name: str, shape: tuple[int, int]) -> int:
    """Return the bits per code, which may differ between groups of weights, from the stored width."""
    stored, (outputs, inputs) = reader.find_dtype_and_shape(name), shape
    widths = {(outputs, -(-inputs * bits // 32)): bits for bits in SUPPORTED_BITS}
    if stored is None or stored[1] not in widths:
        supported = " or ".join(f"{list(known)} ({bits} bits)" for known, bits in widths.items())
        raise ValueError(f"{name} is {list(stored[1]) if stored else 'missing'}; "
                         f"supported for a weight of {list(shape)}: {supported}")
    return widths[stored[1]]


def read_zero_points(reader: TensorReader, matrix_slice: MatrixSlice, scales: Tensor, bits: int) -> Tensor:
    """Return the zero points of unsigned codes, `[rows, groups]`: signed ones are raised by half the range of codes."""
    name, half = f"{matrix_slice.weight_name}_zero_point", 1 << (bits - 1)
    stored = reader.find_dtype_and_shape(name)
    if stored is None:
        return torch.full_like(scales, half, dtype=torch.int16)
    if stored[0] != torch.int32:
        return read_scales(reader, name, matrix_slice, None, stored[0])[0].to(torch.int16) + half
    per_word = 32 // bits
    packed = reader.read_rows(name, (-(-matrix_slice.shape[0] // per_word), scales.shape[1]),
                              find_word_range(matrix_slice.rows, per_word), torch.int32)
    return select_code_range(unpack_words(packed.t(), bits), matrix_slice.rows, per_word).t().to(torch.int16)


def read_group_of_each_column(reader: TensorReader, matrix_slice: MatrixSlice, scales: Tensor,
                              default_groups: Tensor) -> Tensor:
    """Return the group of each column, also if columns were reordered. Some tools write -1 if they were not."""
    name = f"{matrix_slice.weight_name}_g_idx"
    stored = reader.find_dtype_and_shape(name)
    if stored is None:
        return default_groups
    column_groups = reader.read_rows(name, (matrix_slice.shape[1],), matrix_slice.columns, stored[0])
    return (default_groups if bool((column_groups == -1).all())
            else check_column_groups(name, column_groups, scales.shape[1]))


def parse_compressed_tensors_config(quant_config: JsonConfig) -> CompressedTensorsFormat:
    format_name = quant_config.require_supported("format", quant_config.get("format"), SUPPORTED_FORMATS)
    sparsity_config, config_groups = (quant_config.get_subconfig("sparsity_config"),
                                      quant_config.get_subconfig("config_groups"))
    sparsity_config.require_supported("format", sparsity_config.get("format") or "dense", ("dense",))
    groups = [parse_weight_group(config_groups.get_subconfig(name), format_name)
              for name in sorted(config_groups.values)]
    if not groups:
        raise ValueError(f"{quant_config.source}: config_groups names no quantized weights")
    format_names, bits, block_shapes = zip(*groups, strict=True)
    blocks = sorted({shape for shape in block_shapes if shape})
    if len(blocks) > 1:
        raise quant_config.make_unsupported_error(f"block_structure {' beside '.join(map(str, blocks))}",
                                                  ["one for all"])
    return CompressedTensorsFormat(tuple(sorted(set(format_names))), tuple(sorted(set(bits))),
                                   blocks[0] if blocks else None)


def parse_weight_group(quant_config: JsonConfig, default_format: str) -> tuple[str, int, BlockShape | None]:
    """Return format, bits and block shape of one of `config_groups`. `default_format`: its format if it names none."""
    weights = quant_config.get_subconfig("weights")
    number_type = weights.require_supported("type", weights.get("type") or "int", ("int", "float"))
    weights.require_supported("strategy", weights.get("strategy") or "tensor", SUPPORTED_STRATEGIES)
    return (quant_config.require_supported("format", quant_config.get("format") or default_format, SUPPORTED_FORMATS),
            weights.require_supported("num_bits", weights.get("num_bits"),
                                      SUPPORTED_BITS if number_type == "int" else (8,)),
            parse_block_shape(weights, "block_structure"))
