"""GPTQ as written by AutoGPTQ and GPTQModel: codes packed along the inputs, zero points along the outputs.

qweight [in / n, out] and qzeros [groups, out / n] in 32-bit words of n codes; scales [groups, out]; g_idx [in], the
group of each input if inputs were reordered.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shard.json_config import JsonConfig
from shard.quantization.config_fields import parse_group_size
from shard.quantization.format import MatrixSlice, QuantizedSlice, TensorReader
from shard.quantization.packing import (
    SUPPORTED_BITS,
    find_word_range,
    make_consecutive_groups,
    make_integer_slice,
    read_packed_words,
    trim_to_codes,
    unpack_words,
)

GPTQ_V1_FORMAT = "gptq"  # the older format, which stores zero points minus one
CHECKPOINT_FORMATS = (GPTQ_V1_FORMAT, "gptq_v2")


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """Reader of GPTQ weights (`QuantizationFormat`)."""

    bits: int
    group_size: int
    zero_point_offset: int

    @property
    def description(self) -> str:
        return f"GPTQ, {self.bits} bits, {'no groups' if self.group_size == -1 else f'groups of {self.group_size}'}"

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        return (weight_name.endswith(".weight")
                and reader.find_dtype_and_shape(f"{weight_name.removesuffix('.weight')}.qweight") is not None)

    def read_slice(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
        per_word, (outputs, inputs) = 32 // self.bits, matrix_slice.shape
        packed = read_packed_words(reader, f"{matrix_slice.module_name}.qweight", (-(-inputs // per_word), outputs),
                                   find_word_range(matrix_slice.columns, per_word), matrix_slice.rows)

        def read_codes(first: int, last: int) -> Tensor:
            return trim_to_codes(unpack_words(packed[:, first:last].t(), self.bits), matrix_slice.columns, per_word)

        return make_integer_slice(read_codes, self._read_zero_points(reader, matrix_slice),
                                  self._read_scales(reader, matrix_slice),
                                  self._read_column_groups(reader, matrix_slice), self.bits)

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:
        """Return whether the tensor is a bias of zeros: some tools write one for every linear."""
        stored = reader.find_dtype_and_shape(tensor_name)
        return (tensor_name.endswith(".bias") and stored is not None
                and not reader.read_tensor(tensor_name, stored[1]).any())

    def _count_groups(self, matrix_slice: MatrixSlice) -> int:
        return 1 if self.group_size == -1 else -(-matrix_slice.shape[1] // self.group_size)

    def _read_zero_points(self, reader: TensorReader, matrix_slice: MatrixSlice) -> Tensor:
        per_word = 32 // self.bits
        packed = reader.read_columns(f"{matrix_slice.module_name}.qzeros",
                                     (self._count_groups(matrix_slice), -(-matrix_slice.shape[0] // per_word)),
                                     find_word_range(matrix_slice.rows, per_word), torch.int32)
        return trim_to_codes(unpack_words(packed, self.bits), matrix_slice.rows,
                             per_word).t().to(torch.int16) + self.zero_point_offset

    def _read_scales(self, reader: TensorReader, matrix_slice: MatrixSlice) -> Tensor:
        shape = (self._count_groups(matrix_slice), matrix_slice.shape[0])
        return reader.read_columns(f"{matrix_slice.module_name}.scales", shape, matrix_slice.rows,
                                   torch.float32).t().contiguous()

    def _read_column_groups(self, reader: TensorReader, matrix_slice: MatrixSlice) -> Tensor:
        name, inputs = f"{matrix_slice.module_name}.g_idx", matrix_slice.shape[1]
        if reader.find_dtype_and_shape(name) is None:
            return make_consecutive_groups(matrix_slice, inputs if self.group_size == -1 else self.group_size,
                                           reader.device)
        return parse_column_groups(name, reader.read_rows(name, (inputs,), matrix_slice.columns, torch.int32),
                                   self._count_groups(matrix_slice))


def parse_column_groups(name: str, column_groups: Tensor, num_groups: int) -> Tensor:
    if len(column_groups) and not 0 <= int(column_groups.min()) <= int(column_groups.max()) < num_groups:
        raise ValueError(f"{name} names groups from {int(column_groups.min())} to {int(column_groups.max())}; there "
                         f"are {num_groups}")
    return column_groups.long()


def parse_gptq_config(quant_config: JsonConfig) -> GptqFormat:
    bits = quant_config.require_supported("bits", quant_config.get("bits"), SUPPORTED_BITS)
    checkpoint_format = quant_config.require_supported("checkpoint_format",
                                                       quant_config.get("checkpoint_format", "format")
                                                       or GPTQ_V1_FORMAT, CHECKPOINT_FORMATS)
    quant_config.require_supported("pack_dtype", quant_config.get("pack_dtype") or "int32", ("int32",))
    if overriding_rules := [rule for rule in quant_config.get_subconfig("dynamic").values if not rule.startswith("-:")]:
        raise ValueError(f"{quant_config.source}: dynamic gives {overriding_rules[0]} a quantisation of its own, which "
                         f"is not supported" f"; supported: one for all, and rules that leave weights out (-:)")
    return GptqFormat(bits, parse_group_size(quant_config, quant_config.get("group_size")),
                      zero_point_offset=int(checkpoint_format == GPTQ_V1_FORMAT))
