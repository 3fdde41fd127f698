"""Quantised weights of a model as one rank reads them, and the form in which they are kept.

Weights of linears whose codes fit into int8, with one scale per output, are kept as int8. All other quantised weights,
such as eight-bit floats, are dequantised when they are read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shard.quantization.format import CODES_PER_CHUNK, MatrixSlice, QuantizationFormat, QuantizedSlice, TensorReader
from shard.quantization.packing import make_consecutive_groups

INT8_ON_LOAD = "int8"
MAX_CODE = 127


class QuantizedWeightReader:
    """Reader of quantised weights that decides for each whether it is kept as int8 or dequantised."""

    def __init__(self, checkpoint_format: QuantizationFormat | None, quantize_on_load: str) -> None:
        """`checkpoint_format`: format of a quantised checkpoint. `quantize_on_load`: type to which unquantised weights
        are quantised while they are loaded (--quantize); empty: they are not."""
        if checkpoint_format is not None and quantize_on_load:
            raise ValueError(f"--quantize {quantize_on_load} is for weights that are not quantised, and these are: "
                             f"{checkpoint_format.description}; " f"leave it out")
        self._checkpoint_format = checkpoint_format
        self._quantize_on_load = quantize_on_load
        self._kept_names: set[str] = set()
        self._dequantized_names: set[str] = set()

    def try_dequantize_into(self, reader: TensorReader, matrix_slice: MatrixSlice, target: Tensor) -> bool:
        """Dequantise the weight into `target` if it is quantised, and return whether it is."""
        if self._checkpoint_format is None or not self.is_quantized(reader, matrix_slice.weight_name):
            return False
        self._dequantized_names.add(matrix_slice.weight_name)
        self._checkpoint_format.read_slice(reader, matrix_slice).dequantize_into(target)
        return True

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        return self._checkpoint_format is not None and self._checkpoint_format.is_quantized(reader, weight_name)

    def read_quantized_slices(self, reader: TensorReader,
                              matrix_slices: Sequence[MatrixSlice]) -> list[QuantizedSlice] | None:
        """Return the codes for one linear of all parts; None if it is not to be kept quantised."""
        checkpoint_format = self._checkpoint_format
        if self._quantize_on_load == INT8_ON_LOAD:
            quantized_slices = [read_and_quantize_to_int8(reader, part) for part in matrix_slices]
        elif checkpoint_format is not None and all(checkpoint_format.is_quantized(reader, part.weight_name)
                                                   for part in matrix_slices):
            quantized_slices = [checkpoint_format.read_slice(reader, part) for part in matrix_slices]
        else:
            return None
        if not all(part.can_stay_quantized for part in quantized_slices):
            return None
        self._kept_names.update(part.weight_name for part in matrix_slices)
        return quantized_slices

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:
        return self._checkpoint_format is not None and self._checkpoint_format.may_skip_tensor(reader, tensor_name)

    def describe(self, dtype: torch.dtype) -> str:
        """Return one line about the quantised weights and how they are kept, or an empty string."""
        num_kept, num_dequantized = len(self._kept_names), len(self._dequantized_names - self._kept_names)
        if self._checkpoint_format is None:
            return (f"{num_kept} weights quantised to {self._quantize_on_load} and kept so" if self._quantize_on_load
                    else "")
        return (f"quantised checkpoint ({self._checkpoint_format.description}): {num_kept} weights kept as int8, "
                f"{num_dequantized} made into " f"{str(dtype).removeprefix('torch.')} at load")


def read_and_quantize_to_int8(reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
    """Quantise a weight to int8 while it is loaded: one scale per output, no zero points. The scale is that of the
    whole row even if a rank holds only some of its columns, so that the weights are the same for any number of
    ranks."""
    codes = torch.empty(len(matrix_slice.rows), len(matrix_slice.columns), dtype=torch.int8, device=reader.device)
    scales = torch.empty(len(matrix_slice.rows), 1, device=reader.device)
    step, columns = max(1, CODES_PER_CHUNK // matrix_slice.shape[1]), slice(matrix_slice.columns.start,
                                                                            matrix_slice.columns.stop)
    for first in range(0, len(matrix_slice.rows), step):
        rows = matrix_slice.rows[first:first + step]
        weight = reader.read_rows(matrix_slice.weight_name, matrix_slice.shape, rows, torch.float32)
        largest = weight.abs().amax(dim=1, keepdim=True)
        scale = largest.div_(MAX_CODE).masked_fill_(largest == 0, 1.0)  # 1 for a row of zeros
        scales[first:first + step] = scale
        codes[first:first + step] = weight[:, columns].div(scale).round_().clamp_(-MAX_CODE, MAX_CODE)
    return QuantizedSlice(lambda first, last: codes[first:last], scales,
                          make_consecutive_groups(matrix_slice, matrix_slice.shape[1], reader.device), is_int8=True)
