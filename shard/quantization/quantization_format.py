"""Quantized weights independent of the format they were read from: codes, scales, and groups of columns with one scale.
A weight is code times scale; zero points have already been subtracted from the codes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

CODES_PER_CHUNK = 2**20  # codes that are dequantized at once

Shape = tuple[int, ...]


class TensorReader(Protocol):
    """Reader of a checkpoint's tensors by name, each in the requested dtype; `CheckpointReader` implements it."""

    device: torch.device

    def find_dtype_and_shape(self, name: str) -> tuple[torch.dtype, Shape] | None:
        """Return dtype and shape of the tensor, or None if it does not exist."""

    def read_tensor(self, name: str, shape: Shape, dtype: torch.dtype | None = None) -> Tensor: ...
    def read_rows(self, name: str, shape: Shape, rows: range, dtype: torch.dtype | None = None) -> Tensor: ...
    def read_columns(self, name: str, shape: Shape, columns: range, dtype: torch.dtype | None = None) -> Tensor: ...
    def ignore_tensor(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class MatrixSlice:
    """Slice of a weight: some rows with all columns, or some columns with all rows."""

    weight_name: str  # ends with .weight
    shape: tuple[int, int]  # [out, in] of the whole weight
    rows: range
    columns: range

    @property
    def module_name(self) -> str:
        return self.weight_name.removesuffix(".weight")


class GroupLayout(NamedTuple):
    """Equal groups of consecutive columns, into which a slice's columns can be ordered."""

    group_size: int  # columns
    groups: Tensor  # [groups], their numbers in the scales, in order
    column_order: Tensor | None  # [columns], the order that makes groups consecutive; None if they are so already


@dataclass(frozen=True, slots=True)
class QuantizedSlice:
    """Quantized slice of a weight."""

    unpack_codes: Callable[[int, int], Tensor]  # (first row, last row, exclusive) -> codes, [rows, columns]
    scales: Tensor  # [rows, groups], float32
    column_groups: Tensor  # [columns], the group of each column
    is_int8: bool  # whether codes are int8
    is_int4: bool = False  # whether, beside that, at most 15 lies between the codes of an output in one group

    @property
    def num_rows(self) -> int:
        return len(self.scales)

    @property
    def num_columns(self) -> int:
        return len(self.column_groups)

    @property
    def can_stay_int8(self) -> bool:
        """Whether a linear can multiply the codes and scale its outputs: int8 codes with one scale per row."""
        return self.is_int8 and self.scales.shape[1] == 1

    def find_group_layout(self) -> GroupLayout | None:
        """Return the groups in order; None if not all have the same number of columns here. A single group for whole
        rows counts as one of all columns."""
        column_order = None
        if bool((self.column_groups.diff() < 0).any()):
            column_order = self.column_groups.argsort(stable=True)
        ordered = self.column_groups if column_order is None else self.column_groups[column_order]
        groups, counts = torch.unique_consecutive(ordered, return_counts=True)
        group_size = int(counts[0])
        return GroupLayout(group_size, groups, column_order) if bool((counts == group_size).all()) else None

    def dequantize_into(self, target: Tensor) -> None:
        """Dequantize into `target: [rows, columns]` of any dtype: code times scale in float32, then rounded."""
        step = max(1, CODES_PER_CHUNK // self.num_columns)
        for first in range(0, self.num_rows, step):
            part = target[first:first + step]
            scales = expand_groups_to_columns(self.scales[first:first + len(part)], self.column_groups)
            part.copy_(self.unpack_codes(first, first + len(part)).float().mul_(scales))


def expand_groups_to_columns(values: Tensor, column_groups: Tensor) -> Tensor:
    """Expand `[rows, groups]` to `[rows, columns]`; a single group stays one column, which broadcasts."""
    return values if values.shape[1] == 1 else values.index_select(1, column_groups)


class QuantizationFormat(Protocol):
    """Format of a quantized checkpoint, made from its `quantization_config`."""

    @property
    def description(self) -> str:
        """Description of the format for log lines and errors."""

    def is_quantized(self, reader: TensorReader, weight_name: str) -> bool:
        """Return whether the weight is quantized, so that `read_slice` must read it."""

    def read_slice(self, reader: TensorReader, matrix_slice: MatrixSlice) -> QuantizedSlice: ...

    def may_skip_tensor(self, reader: TensorReader, tensor_name: str) -> bool:
        """Return whether this tensor, which nothing has requested, may be left unread."""
