"""Small integers out of 32-bit ones, and slices that do not begin where those do.

Knows nothing of which tool packs what.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shard.quantization.coded import Coded, Shape, Slice, Tensors, spread

BITS = (4, 8)

Codes = Callable[[int, int], Tensor]  # from one row up to another: [rows, columns], unsigned bytes


def unpacked(words: Tensor, bits: int) -> Tensor:
    """`[rows, words] -> [rows, words * 32 / bits]`, the lowest bits first, without sign"""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack([octets & 15, octets >> 4], dim=-1).flatten(1)


def cover(places: range, per_word: int) -> range:
    """The words that hold these places."""
    return range(places.start // per_word, -(-places.stop // per_word))


def cut(codes: Tensor, places: range, per_word: int) -> Tensor:
    """What was wanted out of what the words that cover it hold: `[rows, covered] -> [rows, places]`"""
    first = places.start % per_word
    return codes[:, first:first + len(places)]


def slab(tensors: Tensors, name: str, shape: Shape, rows: range, columns: range) -> Tensor:
    """Packed numbers: some rows, or some columns."""
    if len(columns) == shape[1]:
        return tensors.rows(name, shape, rows, torch.int32)
    return tensors.columns(name, shape, columns, torch.int32)


def without_zeros(codes: Tensor, zeros: Tensor, groups: Tensor, *, signed_bytes: bool) -> Tensor:
    """`codes: [rows, columns]`, unsigned bytes; `zeros: [rows, groups]`, int16"""
    if signed_bytes:  # what would be below 0 wraps around, and is read with a sign
        return (codes - spread(zeros, groups).to(torch.uint8)).view(torch.int8)
    return codes.to(torch.int16) - spread(zeros, groups)


def fit_bytes(zeros: Tensor, bits: int) -> bool:
    """Whether codes less their zero points are signed bytes."""
    return bits < 8 or bool((zeros == 128).all())


def regular(wanted: Slice, group_size: int, device: torch.device) -> Tensor:
    """The group of each column where groups are side by side."""
    return torch.arange(wanted.columns.start, wanted.columns.stop, device=device) // group_size


def integers(codes: Codes, zeros: Tensor, scales: Tensor, groups: Tensor, bits: int) -> Coded:
    """`zeros` and `scales`: `[rows, groups]`"""
    signed_bytes = fit_bytes(zeros, bits)

    def unpack(first: int, last: int) -> Tensor:
        return without_zeros(codes(first, last), zeros[first:last], groups, signed_bytes=signed_bytes)

    return Coded(unpack, scales, groups, signed_bytes)
