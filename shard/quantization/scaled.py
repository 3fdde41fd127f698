"""Weights with one byte per code, and scales per tensor, row, group or block.

Shared by the formats fp8 and compressed-tensors.
"""

from math import prod

import torch
from torch import Tensor

from shard.quantization.format import Coded, Slice, Tensors
from shard.quantization.packing import regular

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
Block = tuple[int, int]  # rows and columns that share a scale


def bytes_of(tensors: Tensors, wanted: Slice, dtype: torch.dtype) -> Tensor:
    if len(wanted.columns) == wanted.shape[1]:
        return tensors.rows(wanted.name, wanted.shape, wanted.rows, dtype)
    return tensors.columns(wanted.name, wanted.shape, wanted.columns, dtype)


def floats(tensors: Tensors, wanted: Slice, dtype: torch.dtype, scales: Tensor, groups: Tensor) -> Coded:
    """Return the quantised slice of eight-bit floats, whose "codes" are their values in float32.

    Values are looked up in a table, since torch's conversion takes several times as long.
    """
    held = bytes_of(tensors, wanted, dtype).view(torch.uint8)
    table = torch.arange(256, dtype=torch.uint8, device=held.device).view(dtype).float()

    def unpack(first: int, last: int) -> Tensor:
        part = held[first:last]
        return table.index_select(0, part.reshape(-1).int()).view(part.shape)

    return Coded(unpack, scales, groups, signed_bytes=False)


def read_scales(tensors: Tensors, name: str, wanted: Slice, block: Block | None,
                dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return the scales, `[rows, groups]`, and the group of each column."""
    stored, (outputs, inputs) = tensors.stored(name), wanted.shape
    shape = stored[1] if stored else (outputs, 1)  # if the tensor is missing, reading it below raises the error
    if prod(shape) == 1 and outputs > 1:
        scales = tensors.whole(name, shape, dtype).reshape(1, 1).expand(len(wanted.rows), 1)
        return scales.contiguous(), regular(wanted, inputs, tensors.device)
    if block is not None:
        return read_blocks(tensors, name, wanted, block)
    check_scales(name, shape, wanted)
    scales = tensors.rows(name, shape, wanted.rows, dtype).view(len(wanted.rows), -1)
    return scales, regular(wanted, inputs // scales.shape[1], tensors.device)


def read_blocks(tensors: Tensors, name: str, wanted: Slice, block: Block) -> tuple[Tensor, Tensor]:
    height, width = block
    blocks = tensors.whole(name, (-(-wanted.shape[0] // height), -(-wanted.shape[1] // width)), torch.float32)
    rows = torch.arange(wanted.rows.start, wanted.rows.stop, device=tensors.device) // height
    return blocks.index_select(0, rows), regular(wanted, width, tensors.device)


def check_scales(name: str, shape: tuple[int, ...], wanted: Slice) -> None:
    outputs, inputs = wanted.shape
    match shape:
        case (rows,) | (rows, 1) if rows == outputs:
            return
        case (rows, groups) if rows == outputs and groups and inputs % groups == 0:
            return
    raise ValueError(f"{name} is {list(shape)}, which does not fit a weight of {list(wanted.shape)}; supported: one "
                     f"scale for all, [{outputs}, 1], or [{outputs}, groups] with equal groups")
