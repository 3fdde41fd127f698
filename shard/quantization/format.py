"""Quantised weights independent of the format they were read from: codes, scales, and groups of columns with one scale.

A weight is code times scale; zero points have already been subtracted from the codes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CHUNK = 2**20  # codes that are dequantised at once

Shape = tuple[int, ...]


class Tensors(Protocol):
    """Reader of a checkpoint's tensors by name, each in the requested dtype; `Weights` implements it."""

    device: torch.device

    def stored(self, name: str) -> tuple[torch.dtype, Shape] | None:
        """Return dtype and shape of the tensor, or None if it does not exist."""

    def whole(self, name: str, shape: Shape, dtype: torch.dtype | None = None) -> Tensor: ...
    def rows(self, name: str, shape: Shape, rows: range, dtype: torch.dtype | None = None) -> Tensor: ...
    def columns(self, name: str, shape: Shape, columns: range, dtype: torch.dtype | None = None) -> Tensor: ...
    def ignore(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Slice:
    """Slice of a weight: some rows with all columns, or some columns with all rows."""

    name: str  # ends with .weight
    shape: tuple[int, int]  # [out, in] of the whole weight
    rows: range
    columns: range

    @property
    def base(self) -> str:
        return self.name.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class Coded:
    """Quantised slice of a weight."""

    unpack: Callable[[int, int], Tensor]  # (first row, last row, exclusive) -> codes, [rows, columns]
    scales: Tensor  # [rows, groups], float32
    groups: Tensor  # [columns], the group of each column
    signed_bytes: bool  # whether codes are int8

    @property
    def num_rows(self) -> int:
        return len(self.scales)

    @property
    def num_columns(self) -> int:
        return len(self.groups)

    @property
    def keepable(self) -> bool:
        """Whether a linear can multiply the codes and scale its outputs: int8 codes with one scale per row."""
        return self.signed_bytes and self.scales.shape[1] == 1

    def fill(self, target: Tensor) -> None:
        """Dequantise into `target: [rows, columns]` of any dtype: code times scale in float32, then rounded."""
        step = max(1, CHUNK // self.num_columns)
        for first in range(0, self.num_rows, step):
            part = target[first:first + step]
            part.copy_(self._numbers(first, first + len(part)))

    def _numbers(self, first: int, last: int) -> Tensor:
        return self.unpack(first, last).float().mul_(spread(self.scales[first:last], self.groups))


def spread(values: Tensor, groups: Tensor) -> Tensor:
    """Expand `[rows, groups]` to `[rows, columns]`; a single group stays one column, which broadcasts."""
    return values if values.shape[1] == 1 else values.index_select(1, groups)


class Format(Protocol):
    """Format of a quantised checkpoint, made from its `quantization_config`."""

    @property
    def note(self) -> str:
        """Description of the format for log lines and errors."""

    def stands_for(self, tensors: Tensors, name: str) -> bool:
        """Return whether the weight is quantised, so that `read` must read it."""

    def read(self, tensors: Tensors, wanted: Slice) -> Coded: ...

    def spare(self, tensors: Tensors, name: str) -> bool:
        """Return whether this tensor, which nothing has requested, may be left unread."""
