"""Quantisation of weights to int8 while they are loaded: one scale per output, no zero points.

The scale is that of the whole row even if a rank holds only some of its columns, so that the weights are the same for
any number of ranks.
"""

import torch
from torch import Tensor

from shard.quantization.format import CHUNK, Coded, Slice, Tensors
from shard.quantization.packing import regular

MOST = 127


def read_int8(tensors: Tensors, wanted: Slice) -> Coded:
    codes = torch.empty(len(wanted.rows), len(wanted.columns), dtype=torch.int8, device=tensors.device)
    scales = torch.empty(len(wanted.rows), 1, device=tensors.device)
    step, columns = max(1, CHUNK // wanted.shape[1]), slice(wanted.columns.start, wanted.columns.stop)
    for first in range(0, len(wanted.rows), step):
        rows = wanted.rows[first:first + step]
        weight = tensors.rows(wanted.name, wanted.shape, rows, torch.float32)
        scale = scale_of(weight)
        scales[first:first + step] = scale
        codes[first:first + step] = weight[:, columns].div(scale).round_().clamp_(-MOST, MOST)
    return Coded(lambda first, last: codes[first:last], scales, regular(wanted, wanted.shape[1], tensors.device),
                 signed_bytes=True)


def scale_of(weight: Tensor) -> Tensor:
    """Return the scales of `[rows, columns]`, `[rows, 1]`; 1 for a row of zeros."""
    largest = weight.abs().amax(dim=1, keepdim=True)
    return largest.div_(MOST).masked_fill_(largest == 0, 1.0)
