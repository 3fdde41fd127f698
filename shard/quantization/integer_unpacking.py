"""Unpacking of small integers from 32-bit words, also for slices that do not begin at a word."""

from collections.abc import Callable

import torch
from torch import Tensor

from shard.quantization.quantization_format import (
    MatrixSlice,
    QuantizedSlice,
    Shape,
    TensorReader,
    expand_groups_to_columns,
)

SUPPORTED_BITS = (4, 8)

CodesReader = Callable[[int, int], Tensor]  # (first row, last row, exclusive) -> [rows, columns], unsigned bytes


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """Unpack `[rows, words]` to unsigned codes, `[rows, words * 32 / bits]`, the lowest bits first."""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack([octets & 15, octets >> 4], dim=-1).flatten(1)


def find_word_range(code_range: range, codes_per_word: int) -> range:
    """Return the range of words that hold the codes `code_range`."""
    return range(code_range.start // codes_per_word, -(-code_range.stop // codes_per_word))


def select_code_range(codes: Tensor, code_range: range, codes_per_word: int) -> Tensor:
    """Cut the codes `code_range` out of those of the words that `find_word_range` returns: `[rows, covered] -> [rows,
    codes]`."""
    first = code_range.start % codes_per_word
    return codes[:, first:first + len(code_range)]


def read_stored_slice(reader: TensorReader, name: str, shape: Shape, rows: range, columns: range, *,
                      dtype: torch.dtype = torch.int32) -> Tensor:
    """Read some rows or some columns of a tensor of codes, or of words of them, as they are stored."""
    if len(columns) == shape[1]:
        return reader.read_rows(name, shape, rows, dtype)
    return reader.read_columns(name, shape, columns, dtype)


def subtract_zero_points(codes: Tensor, zero_points: Tensor, column_groups: Tensor, *, is_int8: bool) -> Tensor:
    """Subtract zero points, int16 `[rows, groups]`, from unsigned codes, `[rows, columns]`."""
    if is_int8:  # negative results wrap around, and viewing them as int8 restores the sign
        return (codes - expand_groups_to_columns(zero_points, column_groups).to(torch.uint8)).view(torch.int8)
    return codes.to(torch.int16) - expand_groups_to_columns(zero_points, column_groups)


def can_fit_int8(zero_points: Tensor, bits: int) -> bool:
    """Return whether codes minus zero points fit into int8."""
    return bits < 8 or bool((zero_points == 128).all())


def make_consecutive_groups(matrix_slice: MatrixSlice, group_size: int, device: torch.device) -> Tensor:
    """Return the group of each column, where each group is a run of consecutive columns."""
    return torch.arange(matrix_slice.columns.start, matrix_slice.columns.stop, device=device) // group_size


def make_zero_point_slice(read_codes: CodesReader, zero_points: Tensor, scales: Tensor, column_groups: Tensor,
                          bits: int) -> QuantizedSlice:
    """Return the quantized slice of integers with zero points. `zero_points` and `scales` are `[rows, groups]`."""
    is_int8 = can_fit_int8(zero_points, bits)

    def unpack_codes(first: int, last: int) -> Tensor:
        return subtract_zero_points(read_codes(first, last), zero_points[first:last], column_groups, is_int8=is_int8)

    return QuantizedSlice(unpack_codes, scales, column_groups, is_int8, is_int4=bits == 4)
