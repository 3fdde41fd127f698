"""What a quantised weight is, whatever the tool that made it: codes, scales, and which columns share a scale.

A number is its code times its scale; zero points have been taken off the codes. Knows nothing of files' formats, nor of
what a weight is for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CHUNK = 2**20  # codes that are made into numbers at once

Shape = tuple[int, ...]


class Tensors(Protocol):
    """What a format reads: tensors by name, each in the type asked for. See `shard/weights.py`."""

    device: torch.device

    def stored(self, name: str) -> tuple[torch.dtype, Shape] | None:
        """Type and shape, or nothing if there is no such tensor."""

    def whole(self, name: str, shape: Shape, dtype: torch.dtype | None = None) -> Tensor: ...
    def rows(self, name: str, shape: Shape, rows: range, dtype: torch.dtype | None = None) -> Tensor: ...
    def columns(self, name: str, shape: Shape, columns: range, dtype: torch.dtype | None = None) -> Tensor: ...
    def ignore(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows of a weight, or some columns: the other are all."""

    name: str  # ends with .weight
    shape: tuple[int, int]  # [out, in], of the whole
    rows: range
    columns: range

    @property
    def base(self) -> str:
        return self.name.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class Coded:
    """A slice of a weight."""

    unpack: Callable[[int, int], Tensor]  # from one row up to another: codes, [rows, columns]
    scales: Tensor  # [rows, groups], float32
    groups: Tensor  # [columns], the group of each
    signed_bytes: bool  # whether codes are int8

    @property
    def num_rows(self) -> int:
        return len(self.scales)

    @property
    def num_columns(self) -> int:
        return len(self.groups)

    @property
    def keepable(self) -> bool:
        """Whether a product can be made of codes alone, and its results be scaled."""
        return self.signed_bytes and self.scales.shape[1] == 1

    def fill(self, target: Tensor) -> None:
        """`target: [rows, columns]`, in any type; what is rounded is the exact product of code and scale in float32."""
        step = max(1, CHUNK // self.num_columns)
        for first in range(0, self.num_rows, step):
            part = target[first:first + step]
            part.copy_(self._numbers(first, first + len(part)))

    def _numbers(self, first: int, last: int) -> Tensor:
        return self.unpack(first, last).float().mul_(spread(self.scales[first:last], self.groups))


def spread(values: Tensor, groups: Tensor) -> Tensor:
    """`[rows, groups] -> [rows, columns]`, or a single column for all"""
    return values if values.shape[1] == 1 else values.index_select(1, groups)


class Format(Protocol):
    """How a tool writes quantised weights. One that reads checkpoints is made from their `quantization_config`."""

    @property
    def note(self) -> str:
        """What the checkpoint is, for people."""

    def stands_for(self, tensors: Tensors, name: str) -> bool:
        """Whether this weight is not stored as numbers, but as what `read` reads."""

    def read(self, tensors: Tensors, wanted: Slice) -> Coded: ...

    def spare(self, tensors: Tensors, name: str) -> bool:
        """Whether this tensor, which nobody asked for, may be left unread."""
