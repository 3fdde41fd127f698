"""Quantisation of weights to int8 while they are loaded: one scale per output, no zero points.

The scale is that of the whole row even if a rank holds only some of its columns, so that the weights are the same for
any number of ranks.
"""

import torch

from shard.quantization.format import CODES_PER_CHUNK, MatrixSlice, QuantizedSlice, TensorReader
from shard.quantization.packing import make_consecutive_groups

MAX_CODE = 127


def read_and_quantize_to_int8(reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice:
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
