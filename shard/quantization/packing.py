"""Unpacking of small integers from 32-bit words, also for slices that do not begin at a word."""

from collections.abc import Callable

import torch
from torch import Tensor

from shard.quantization.format import Coded, Shape, Slice, Tensors, spread

BITS = (4, 8)

Codes = Callable[[int, int], Tensor]  # (first row, last row, exclusive) -> [rows, columns], unsigned bytes


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Unpack `[rows, words]` to unsigned codes, `[rows, words * 32 / bits]`, the lowest bits first."""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack([octets & 15, octets >> 4], dim=-1).flatten(1)


def cover(places: range, per_word: int) -> range:
    """Return the range of words that hold the codes `places`."""
    return range(places.start // per_word, -(-places.stop // per_word))


def cut(codes: Tensor, places: range, per_word: int) -> Tensor:
    """Cut the codes `places` out of those of the words that `cover` returns: `[rows, covered] -> [rows, places]`."""
    first = places.start % per_word
    return codes[:, first:first + len(places)]


def slab(tensors: Tensors, name: str, shape: Shape, rows: range, columns: range) -> Tensor:
    """Read some rows or some columns of a tensor of packed words."""
    if len(columns) == shape[1]:
        return tensors.rows(name, shape, rows, torch.int32)
    return tensors.columns(name, shape, columns, torch.int32)


def without_zeros(codes: Tensor, zeros: Tensor, groups: Tensor, *, signed_bytes: bool) -> Tensor:
    """Subtract zero points, int16 `[rows, groups]`, from unsigned codes, `[rows, columns]`."""
    if signed_bytes:  # negative results wrap around, and viewing them as int8 restores the sign
        return (codes - spread(zeros, groups).to(torch.uint8)).view(torch.int8)
    return codes.to(torch.int16) - spread(zeros, groups)


def fit_bytes(zeros: Tensor, bits: int) -> bool:
    """Return whether codes minus zero points fit into int8."""
    return bits < 8 or bool((zeros == 128).all())


def regular(wanted: Slice, group_size: int, device: torch.device) -> Tensor:
    """Return the group of each column, where each group is a run of consecutive columns."""
    return torch.arange(wanted.columns.start, wanted.columns.stop, device=device) // group_size


def integers(codes: Codes, zeros: Tensor, scales: Tensor, groups: Tensor, bits: int) -> Coded:
    """Return the quantised slice of integers with zero points. `zeros` and `scales` are `[rows, groups]`."""
    signed_bytes = fit_bytes(zeros, bits)

    def unpack(first: int, last: int) -> Tensor:
        return without_zeros(codes(first, last), zeros[first:last], groups, signed_bytes=signed_bytes)

    return Coded(unpack, scales, groups, signed_bytes)
