"""Quantized weights of a model as one rank reads them, and the form in which they are kept.

Weights of linears whose codes fit into int8, with one scale per output, are kept as int8. Weights of four bits are kept
so if the reader's kernels multiply them. All other quantized weights, such as eight-bit floats, are dequantized when
they are read.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from shard.quantization.integer_unpacking import make_consecutive_groups
from shard.quantization.quantization_format import (
    CODES_PER_CHUNK,
    MatrixSlice,
    QuantizationFormat,
    QuantizedSlice,
    TensorReader,
)
from shard.quantization.weight_quantization import choose_weight_read_dtype, quantize_to_int4, quantize_to_int8

INT8_ON_LOAD, INT4_ON_LOAD = "int8", "int4"
CanKeepInt4 = Callable[[Sequence[QuantizedSlice]], bool]
INT4_GROUP_SIZES = (64, 32, 16, 8)  # inputs with one scale; the first that divides this rank's columns


class QuantizedWeightReader:
    """Reader of quantized weights that decides for each whether it is kept quantized or dequantized."""

    def __init__(self, checkpoint_format: QuantizationFormat | None, quantize_on_load: str) -> None:
        """`checkpoint_format`: format of a quantized checkpoint. `quantize_on_load`: type to which unquantized weights
        are quantized while they are loaded (--quantize); empty: they are not."""
        if checkpoint_format is not None and quantize_on_load:
            raise ValueError(f"--quantize {quantize_on_load} is for weights that are not quantized, and these are: "
                             f"{checkpoint_format.description}; " f"leave it out")
        self._checkpoint_format = checkpoint_format
        self._quantize_on_load = quantize_on_load
        self._int4_names: set[str] = set()
        self._int8_names: set[str] = set()
        self._has_int8_head = False
        self._dequantized_names: set[str] = set()

    def try_dequantize_into(self, reader: TensorReader, matrix_slice: MatrixSlice, target: Tensor) -> bool:
        """Dequantize the weight into `target` if it is quantized, and return whether it is."""
        if self._checkpoint_format is None or not self.is_quantized(reader, matrix_slice.weight_name):
            return False
        self._dequantized_names.add(matrix_slice.weight_name)
        self._checkpoint_format.read_slice(reader, matrix_slice).dequantize_into(target)
        return True

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        return self._checkpoint_format is not None and self._checkpoint_format.is_quantized(reader, weight_name)

    def read_quantized_slices(self, reader: TensorReader, matrix_slices: Sequence[MatrixSlice],
                              can_keep_int4: CanKeepInt4 | None) -> list[QuantizedSlice] | None:
        """Return the codes for one linear of all parts; None if it is not to be kept quantized. `can_keep_int4`:
        whether weights are of four bits and there are kernels for their groups; None: there are no such kernels."""
        checkpoint_format = self._checkpoint_format
        if self._quantize_on_load == INT8_ON_LOAD:
            quantized_slices = [read_and_quantize_to_int8(reader, part) for part in matrix_slices]
        elif self._quantize_on_load == INT4_ON_LOAD:
            quantized_slices = [read_and_quantize_to_int4(reader, part) for part in matrix_slices]
        elif checkpoint_format is not None and all(checkpoint_format.is_quantized(reader, part.weight_name)
                                                   for part in matrix_slices):
            quantized_slices = [checkpoint_format.read_slice(reader, part) for part in matrix_slices]
        else:
            return None
        names = {part.weight_name for part in matrix_slices}
        if can_keep_int4 is not None and can_keep_int4(quantized_slices):
            self._int4_names |= names
        elif all(part.can_stay_int8 for part in quantized_slices):
            self._int8_names |= names
        else:
            return None
        return quantized_slices

    def quantize_head_to_int8(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice | None:
        """Return the codes of the head if weights are quantized while they are loaded, to whatever type."""
        if not self._quantize_on_load:
            return None
        self._has_int8_head = True
        return read_and_quantize_to_int8(reader, matrix_slice)

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:
        return self._checkpoint_format is not None and self._checkpoint_format.may_skip_tensor(reader, tensor_name)

    def describe(self, dtype: torch.dtype) -> str:
        """Return one line about the quantized weights and how they are kept, or an empty string."""
        kept_names = self._int4_names | self._int8_names
        if self._checkpoint_format is None:
            if not self._quantize_on_load:
                return ""
            head = ", the head to int8," if self._has_int8_head else ""
            return f"{len(kept_names)} weights quantized to {self._quantize_on_load}{head} and kept so"
        if not kept_names | self._dequantized_names:
            return f"config.json names a quantization ({self._checkpoint_format.description}) that no weight has"
        four_bits = f"{len(self._int4_names)} weights kept in four bits, " if self._int4_names else ""
        return (f"quantized checkpoint ({self._checkpoint_format.description}): {four_bits}{len(self._int8_names)} "
                f"weights kept as int8, {len(self._dequantized_names - kept_names)} made into "
                f"{str(dtype).removeprefix('torch.')} at load")


def read_and_quantize_to_int8(reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
    """Quantize a weight to int8 while it is loaded: one scale per output, no zero points. The scale is that of the
    whole row even if a rank holds only some of its columns, so that the weights are the same for any number of
    ranks."""
    codes = torch.empty(len(matrix_slice.rows), len(matrix_slice.columns), dtype=torch.int8, device=reader.device)
    scales = torch.empty(len(matrix_slice.rows), 1, device=reader.device)
    for weight, rows in iter_unquantized_row_chunks(reader, matrix_slice):
        quantize_to_int8(weight, matrix_slice.columns, codes[rows], scales[rows])
    return QuantizedSlice(lambda first, last: codes[first:last], scales,
                          make_consecutive_groups(matrix_slice, matrix_slice.shape[1], reader.device), is_int8=True)


def read_and_quantize_to_int4(reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
    """Quantize a weight to four bits while it is loaded, with a scale for each output and group of inputs.

    The size of groups divides where this rank's columns start and stop, and their number in the whole weight. All ranks
    choose the same size, so long as they have equally many columns.
    """
    columns, num_rows = matrix_slice.columns, len(matrix_slice.rows)
    group_size = next((size for size in INT4_GROUP_SIZES
                       if not any(number % size for number in (columns.start, columns.stop, matrix_slice.shape[1]))), 0)
    if not group_size:
        raise ValueError(f"--quantize int4 needs multiples of {INT4_GROUP_SIZES[-1]} inputs, and of "
                         f"{matrix_slice.weight_name} a shard has inputs {columns.start} to {columns.stop} of "
                         f"{matrix_slice.shape[1]}; choose another --num-shard, or --quantize int8")
    codes = torch.empty(num_rows, len(columns), dtype=torch.int8, device=reader.device)
    scales = torch.empty(num_rows, len(columns) // group_size, device=reader.device)
    for weight, rows in iter_unquantized_row_chunks(reader, matrix_slice):
        quantize_to_int4(weight, columns, codes[rows], scales[rows], group_size)
    return QuantizedSlice(lambda first, last: codes[first:last], scales,
                          torch.arange(len(columns), device=reader.device) // group_size, is_int8=True, is_int4=True)


def iter_unquantized_row_chunks(reader: TensorReader, matrix_slice: MatrixSlice) -> Iterator[tuple[Tensor, slice]]:
    """Yield whole rows of the weight, a few at a time, and where they stand among the rows of the slice."""
    stored = reader.find_dtype_and_shape(matrix_slice.weight_name)
    dtype = choose_weight_read_dtype(None if stored is None else stored[0], reader.device)
    step = max(1, CODES_PER_CHUNK // matrix_slice.shape[1])
    for first in range(0, len(matrix_slice.rows), step):
        rows = matrix_slice.rows[first:first + step]
        yield (reader.read_rows(matrix_slice.weight_name, matrix_slice.shape, rows, dtype),
               slice(first, first + len(rows)))
