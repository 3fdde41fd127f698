"""AWQ in AutoAWQ's gemm layout: codes packed along the outputs, in an interleaved order.

qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shard.json_config import JsonConfig
from shard.quantization.config_fields import parse_group_size
from shard.quantization.format import MatrixSlice, QuantizedSlice, TensorReader
from shard.quantization.packing import (
    find_word_range,
    make_consecutive_groups,
    make_integer_slice,
    read_packed_words,
    trim_to_codes,
    unpack_words,
)

CODES_PER_WORD = 8
CODE_ORDER_IN_WORD = (0, 4, 1, 5, 2, 6, 3, 7)  # by output, the index of its code among the eight of a word
SUPPORTED_VERSION = "gemm"


def unpack_in_output_order(words: Tensor) -> Tensor:
    """Unpack `[rows, words]` to `[rows, words * 8]`, in the order of the outputs."""
    places = torch.tensor(CODE_ORDER_IN_WORD, device=words.device)
    return unpack_words(words, 4).view(len(words), -1, CODES_PER_WORD).index_select(2, places).flatten(1)


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """Reader of AWQ weights (`QuantizationFormat`)."""

    group_size: int

    @property
    def description(self) -> str:
        return f"AWQ, 4 bits, {'no groups' if self.group_size == -1 else f'groups of {self.group_size}'}"

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        return (weight_name.endswith(".weight")
                and reader.find_dtype_and_shape(f"{weight_name.removesuffix('.weight')}.qweight") is not None)

    def read_slice(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
        outputs, inputs = matrix_slice.shape
        group_size = inputs if self.group_size == -1 else self.group_size
        num_groups, num_words = -(-inputs // group_size), -(-outputs // CODES_PER_WORD)
        word_range = find_word_range(matrix_slice.rows, CODES_PER_WORD)
        packed_words = read_packed_words(reader, f"{matrix_slice.module_name}.qweight", (inputs, num_words),
                                         matrix_slice.columns, word_range)
        zero_words = reader.read_columns(f"{matrix_slice.module_name}.qzeros", (num_groups, num_words), word_range,
                                         torch.int32)
        scales = reader.read_columns(f"{matrix_slice.module_name}.scales", (num_groups, outputs), matrix_slice.rows,
                                     torch.float32)

        def read_codes(first: int, last: int) -> Tensor:
            rows = range(matrix_slice.rows.start + first, matrix_slice.rows.start + last)
            held = find_word_range(rows, CODES_PER_WORD)
            needed = packed_words[:, held.start - word_range.start:held.stop - word_range.start]
            return trim_to_codes(unpack_in_output_order(needed), rows, CODES_PER_WORD).t().contiguous()

        return make_integer_slice(read_codes, trim_to_codes(unpack_in_output_order(zero_words), matrix_slice.rows,
                                                            CODES_PER_WORD).t().to(torch.int16),
                                  scales.t().contiguous(),
                                  make_consecutive_groups(matrix_slice, group_size, reader.device), 4)

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:  # noqa: ARG002 - no tensor may be left unread
        return False


def parse_awq_config(quant_config: JsonConfig) -> AwqFormat:
    quant_config.require_supported("bits", quant_config.get("bits", "w_bit"), (4,))
    quant_config.require_supported("version", str(quant_config.get("version") or SUPPORTED_VERSION).lower(),
                                   (SUPPORTED_VERSION,))
    return AwqFormat(parse_group_size(quant_config, quant_config.get("group_size", "q_group_size")))
