"""Quantised weights of a model as one rank reads them, and the form in which they are kept.

Weights of linears whose codes fit into int8, with one scale per output, are kept as int8. All other quantised weights,
such as eight-bit floats, are dequantised when they are read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shard.quantization.format import MatrixSlice, QuantizationFormat, QuantizedSlice, TensorReader
from shard.quantization.int8 import read_and_quantize_to_int8

INT8_ON_LOAD = "int8"


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
        if (self._checkpoint_format is None
            or not self._checkpoint_format.is_quantized(reader, matrix_slice.weight_name)):
            return False
        self._dequantized_names.add(matrix_slice.weight_name)
        self._checkpoint_format.read_slice(reader, matrix_slice).dequantize_into(target)
        return True

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        return self._checkpoint_format is not None and self._checkpoint_format.is_quantized(reader, weight_name)

    def read_quantized_slices(self, reader: TensorReader,
                              matrix_slices: Sequence[MatrixSlice]) -> list[QuantizedSlice] | None:
        """Return the codes for one linear of all parts; None if it is not to be kept quantised."""
        quantized_slices = self._read_slices(reader, matrix_slices)
        if quantized_slices is None or not all(part.can_stay_quantized for part in quantized_slices):
            return None
        self._kept_names.update(part.weight_name for part in matrix_slices)
        return quantized_slices

    def _read_slices(self, reader: TensorReader, matrix_slices: Sequence[MatrixSlice]) -> list[QuantizedSlice] | None:
        if self._quantize_on_load == INT8_ON_LOAD:
            return [read_and_quantize_to_int8(reader, part) for part in matrix_slices]
        if self._checkpoint_format is None or not all(self._checkpoint_format.is_quantized(reader, part.weight_name)
                                                      for part in matrix_slices):
            return None
        return [self._checkpoint_format.read_slice(reader, part) for part in matrix_slices]

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
