"""GPTQ as written by AutoGPTQ and GPTQModel, and AWQ in AutoAWQ's gemm layout: 32-bit words of n codes, with a scale
and a zero point for each output and group of inputs. Both hold qzeros [groups, out / n] and scales [groups, out].

GPTQ packs codes along the inputs, qweight [in / n, out], and may have g_idx [in], the group of each input if inputs
were reordered. AWQ packs them along the outputs, qweight [in, out / 8], in an interleaved order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from shard.json_config import JsonConfig
from shard.quantization.integer_unpacking import (
    SUPPORTED_BITS,
    find_word_range,
    make_consecutive_groups,
    make_zero_point_slice,
    read_stored_slice,
    select_code_range,
    unpack_words,
)
from shard.quantization.quantization_format import MatrixSlice, QuantizedSlice, TensorReader

GPTQ_V1_FORMAT = "gptq"  # the older format, which stores zero points minus one
CHECKPOINT_FORMATS = (GPTQ_V1_FORMAT, "gptq_v2")
AWQ_BITS, AWQ_VERSION = 4, "gemm"
AWQ_CODE_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # by output, the index of its code among the eight of a word


@dataclass(frozen=True, slots=True)
class GroupedIntegerFormat:
    """Base of the GPTQ and AWQ formats: integer codes with a scale and a zero point per group."""

    method: ClassVar[str]
    bits: int
    group_size: int  # -1: all inputs are one group

    @property
    def description(self) -> str:
        groups = "no groups" if self.group_size == -1 else f"groups of {self.group_size}"
        return f"{self.method}, {self.bits} bits, {groups}"

    @property
    def codes_per_word(self) -> int:
        return 32 // self.bits

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        return (weight_name.endswith(".weight")
                and reader.find_dtype_and_shape(f"{weight_name.removesuffix('.weight')}.qweight") is not None)

    def count_groups(self, matrix_slice: MatrixSlice) -> int:
        return 1 if self.group_size == -1 else -(-matrix_slice.shape[1] // self.group_size)

    def make_column_groups(self, matrix_slice: MatrixSlice, device: torch.device) -> Tensor:
        return make_consecutive_groups(
            matrix_slice, matrix_slice.shape[1] if self.group_size == -1 else self.group_size, device)

    def read_scales(self, reader: TensorReader, matrix_slice: MatrixSlice) -> Tensor:
        """`[rows, groups]`"""
        shape = (self.count_groups(matrix_slice), matrix_slice.shape[0])
        return reader.read_columns(f"{matrix_slice.module_name}.scales", shape, matrix_slice.rows,
                                   torch.float32).t().contiguous()

    def read_zero_points(self, reader: TensorReader, matrix_slice: MatrixSlice,
                         unpack: Callable[[Tensor], Tensor]) -> Tensor:
        """`[rows, groups]`, int16"""
        shape = (self.count_groups(matrix_slice), -(-matrix_slice.shape[0] // self.codes_per_word))
        words = reader.read_columns(f"{matrix_slice.module_name}.qzeros", shape,
                                    find_word_range(matrix_slice.rows, self.codes_per_word), torch.int32)
        return select_code_range(unpack(words), matrix_slice.rows, self.codes_per_word).t().to(torch.int16)


@dataclass(frozen=True, slots=True)
class GptqFormat(GroupedIntegerFormat):
    """Reader of GPTQ weights (`QuantizationFormat`)."""

    method = "GPTQ"
    zero_point_offset: int

    def read_slice(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
        per_word, (outputs, inputs) = self.codes_per_word, matrix_slice.shape
        packed = read_stored_slice(reader, f"{matrix_slice.module_name}.qweight", (-(-inputs // per_word), outputs),
                                   find_word_range(matrix_slice.columns, per_word), matrix_slice.rows)

        def read_codes(first: int, last: int) -> Tensor:
            return select_code_range(unpack_words(packed[:, first:last].t(), self.bits), matrix_slice.columns, per_word)

        name = f"{matrix_slice.module_name}.g_idx"
        if reader.find_dtype_and_shape(name) is None:
            column_groups = self.make_column_groups(matrix_slice, reader.device)
        else:
            column_groups = check_column_groups(name, reader.read_rows(name, (inputs,), matrix_slice.columns,
                                                                       torch.int32), self.count_groups(matrix_slice))
        zero_points = self.read_zero_points(reader, matrix_slice, partial(unpack_words, bits=self.bits))
        return make_zero_point_slice(read_codes, zero_points + self.zero_point_offset,
                                     self.read_scales(reader, matrix_slice), column_groups, self.bits)

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:
        """Return whether the tensor is a bias of zeros: some tools write one for every linear."""
        stored = reader.find_dtype_and_shape(tensor_name)
        return (tensor_name.endswith(".bias") and stored is not None
                and not reader.read_tensor(tensor_name, stored[1]).any())


def unpack_in_output_order(words: Tensor) -> Tensor:
    """Unpack `[rows, words]` to `[rows, words * 8]`, in the order of the outputs."""
    places = torch.tensor(AWQ_CODE_ORDER, device=words.device)
    return unpack_words(words, AWQ_BITS).view(len(words), -1, len(places)).index_select(2, places).flatten(1)


class AwqFormat(GroupedIntegerFormat):
    """Reader of AWQ weights (`QuantizationFormat`)."""

    method = "AWQ"

    def read_slice(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
        per_word, (outputs, inputs) = self.codes_per_word, matrix_slice.shape
        word_range = find_word_range(matrix_slice.rows, per_word)
        packed = read_stored_slice(reader, f"{matrix_slice.module_name}.qweight", (inputs, -(-outputs // per_word)),
                                   matrix_slice.columns, word_range)

        def read_codes(first: int, last: int) -> Tensor:
            rows = range(matrix_slice.rows.start + first, matrix_slice.rows.start + last)
            held = find_word_range(rows, per_word)
            needed = packed[:, held.start - word_range.start:held.stop - word_range.start]
            return select_code_range(unpack_in_output_order(needed), rows, per_word).t().contiguous()

        return make_zero_point_slice(read_codes, self.read_zero_points(reader, matrix_slice, unpack_in_output_order),
                                     self.read_scales(reader, matrix_slice),
                                     self.make_column_groups(matrix_slice, reader.device), self.bits)

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:  # noqa: ARG002 - no tensor may be left unread
        return False


def check_column_groups(name: str, column_groups: Tensor, num_groups: int) -> Tensor:
    if len(column_groups) and not 0 <= int(column_groups.min()) <= int(column_groups.max()) < num_groups:
        raise ValueError(f"{name} names groups from {int(column_groups.min())} to {int(column_groups.max())}; there "
                         f"are {num_groups}")
    return column_groups.long()


def parse_group_size(quant_config: JsonConfig, value: object) -> int:
    """Return the checked group size; -1 means that all columns share a scale."""
    if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
        raise ValueError(f"{quant_config.source}: group_size must be -1 or a whole number of at least 1, got {value}")
    return value


def parse_gptq_config(quant_config: JsonConfig) -> GptqFormat:
    bits = quant_config.require_supported("bits", quant_config.get("bits"), SUPPORTED_BITS)
    checkpoint_format = quant_config.require_supported("checkpoint_format",
                                                       quant_config.get("checkpoint_format", "format")
                                                       or GPTQ_V1_FORMAT, CHECKPOINT_FORMATS)
    quant_config.require_supported("pack_dtype", quant_config.get("pack_dtype") or "int32", ("int32",))
    if overriding_rules := [rule for rule in quant_config.get_subconfig("dynamic").values if not rule.startswith("-:")]:
        raise ValueError(f"{quant_config.source}: dynamic gives {overriding_rules[0]} a quantization of its own, which "
                         f"is not supported" f"; supported: one for all, and rules that leave weights out (-:)")
    return GptqFormat(bits, parse_group_size(quant_config, quant_config.get("group_size")),
                      zero_point_offset=int(checkpoint_format == GPTQ_V1_FORMAT))


def parse_awq_config(quant_config: JsonConfig) -> AwqFormat:
    quant_config.require_supported("bits", quant_config.get("bits", "w_bit"), (AWQ_BITS,))
    quant_config.require_supported("version", str(quant_config.get("version") or AWQ_VERSION).lower(), (AWQ_VERSION,))
    return AwqFormat(AWQ_BITS, parse_group_size(quant_config, quant_config.get("group_size", "q_group_size")))
