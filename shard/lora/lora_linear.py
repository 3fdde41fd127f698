"""Linears with adapters: a row's adapter adds a low-rank update or replaces the whole weight.

Updates are computed by torch here; `triton_lora_store.py` and `native_lora_store.py` do the same by kernels. Torch
multiplies rows in tiles, by matrices of one bucket that share a tensor: docs/concepts/exactness.md, "Tiles of one
size".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from shard.lora.native_lora_store import NativeLoraStore
from shard.lora.routing import ROWS_PER_TILE, SLOTS_PER_BUCKET, AdapterRouting, AdapterSlot, RankBucket
from shard.native.library import load_library
from shard.ops.triton_support import import_kernels
from shard.ops.unquantized_linear import Linear
from shard.quantization.quantization_format import MatrixSlice


@dataclass(frozen=True, slots=True)
class FusedLinearPart:
    """Consecutive slices of one checkpoint weight within a rank's linear."""

    slices: tuple[MatrixSlice, ...]  # rows past the end of the weight are zeros
    output_columns: range  # of the linear's output

    @property
    def module(self) -> str:
        return self.slices[0].module_name

    @property
    def shape(self) -> tuple[int, int]:
        return self.slices[0].shape

    @property
    def inputs(self) -> range:
        return self.slices[0].columns

    def slice_lora_matrices(self, lora_a: Tensor, lora_b: Tensor) -> tuple[Tensor, Tensor]:
        """Return this rank's slices of an adapter's matrices."""
        outputs = torch.zeros(len(self.output_columns), lora_b.shape[1])
        first = 0
        for portion in self.slices:
            held = lora_b[portion.rows.start:portion.rows.stop]
            outputs[first:first + len(held)] = held
            first += len(portion.rows)
        return lora_a[:, self.inputs.start:self.inputs.stop], outputs


def group_slices_into_parts(matrix_slices: Sequence[MatrixSlice]) -> list[FusedLinearPart]:
    parts: list[FusedLinearPart] = []
    first = 0
    for _, group in groupby(matrix_slices, key=lambda portion: portion.weight_name):
        same = tuple(group)
        last = first + sum(len(portion.rows) for portion in same)
        parts.append(FusedLinearPart(same, range(first, last)))
        first = last
    return parts


class LinearLoraStore(Protocol):
    """LoRA matrices of all adapters for one linear: `lora_a: [rank, in]` and `lora_b: [out, rank]` for each of its
    parts."""

    is_capturable: bool  # whether the kernels launched do not depend on which adapters the rows have
    is_recordable: bool  # the same of compiled kernels, which a recorded step on a CPU consists of

    def store_adapter(self, slot: AdapterSlot, part_index: int, lora_a: Tensor, lora_b: Tensor) -> int:
        """Store an adapter's matrices before any row uses them. Return their size in bytes."""

    def clear_slot(self, slot: AdapterSlot) -> None:
        """Remove the matrices of a slot that no row uses any more."""

    def add_updates_to_output(self, x: Tensor, y: Tensor) -> None:
        """Add the updates of the current rows' adapters to `y`, the linear's output for `x`."""


class LoraLinear:
    """Linear that applies the rows' adapters to its output."""

    def __init__(self, linear: Linear, adapter_routing: AdapterRouting, matrix_slices: Sequence[MatrixSlice],
                 dtype: torch.dtype, device: torch.device) -> None:
        """`matrix_slices`: slices of the checkpoint's weights that `linear` consists of. `dtype`: compute dtype of
        updates."""
        self._linear = linear
        self.parts = group_slices_into_parts(matrix_slices)
        self.lora_weights = make_lora_store(adapter_routing, self.parts, dtype, device)
        self._adapter_routing = adapter_routing
        self.replacements: dict[int, Linear] = {}  # by adapter, used instead of the model's linear

    def __call__(self, x: Tensor) -> Tensor:
        y = self._linear(x)
        self.lora_weights.add_updates_to_output(x, y)
        if self.replacements:
            for adapter, rows in self._adapter_routing.rows.adapter_rows:
                if (replacement := self.replacements.get(adapter)) is not None:
                    y.index_copy_(0, rows, replacement(x.index_select(0, rows)))
        return y


def make_lora_store(adapter_routing: AdapterRouting, parts: Sequence[FusedLinearPart], dtype: torch.dtype,
                    device: torch.device) -> LinearLoraStore:
    """Return a store with the fastest kernels that there are."""
    triton_module = import_kernels(device, "shard.lora.triton_lora_store")
    store: LinearLoraStore
    if triton_module is not None:
        store = triton_module.TritonLoraStore(adapter_routing, parts, dtype, device)
    elif device.type == "cpu" and (library := load_library()) is not None:
        store = NativeLoraStore(adapter_routing, [part.output_columns for part in parts], library)
    else:
        store = TorchLoraStore(adapter_routing, parts, dtype, device)
    return store


class LoraStack(NamedTuple):
    """Matrices of one part for the adapters of one bucket; zeros beyond an adapter's rank.

    In free slots, and in those of adapters that do not change the part, `lora_a` is zero.
    """

    lora_a: Tensor  # [SLOTS_PER_BUCKET, padded_rank, in]
    lora_b: Tensor  # [SLOTS_PER_BUCKET, padded_rank, out], transposed: few rows are multiplied up to twice as fast


class TorchLoraStore:
    """Implementation of `LinearLoraStore` by torch's batched matmul."""

    is_capturable = False
    is_recordable = False

    def __init__(self, adapter_routing: AdapterRouting, parts: Sequence[FusedLinearPart], dtype: torch.dtype,
                 device: torch.device) -> None:
        self._adapter_routing = adapter_routing
        self._parts = parts
        self._dtype, self._device = dtype, device
        self._stacks: dict[RankBucket, dict[int, LoraStack]] = {}  # by bucket and part

    def store_adapter(self, slot: AdapterSlot, part_index: int, lora_a: Tensor, lora_b: Tensor) -> int:
        stacks = self._stacks.setdefault(slot.bucket, {})
        if part_index not in stacks:
            part = self._parts[part_index]
            stacks[part_index] = LoraStack(*(
                allocate_zeros((SLOTS_PER_BUCKET, slot.bucket.padded_rank, width), self._dtype, self._device)
                for width in (len(part.inputs), len(part.output_columns))))
        stored_matrices = [matrices[slot.index_in_bucket] for matrices in stacks[part_index]]
        for stored, matrix in zip(stored_matrices, (lora_a, lora_b.T), strict=True):
            stored.zero_()
            stored[:matrix.shape[0], :matrix.shape[1]] = matrix
        return sum(stored.nbytes for stored in stored_matrices)

    def clear_slot(self, slot: AdapterSlot) -> None:
        for stack in self._stacks.get(slot.bucket, {}).values():
            stack.lora_a[slot.index_in_bucket].zero_()

    def add_updates_to_output(self, x: Tensor, y: Tensor) -> None:
        for tiles in self._adapter_routing.rows.tiles:
            if (stacks := self._stacks.get(tiles.bucket)) is None:
                continue
            rows = x if tiles.input_rows is None else x.index_select(0, tiles.input_rows)
            rows = rows.to(self._dtype).reshape(-1, ROWS_PER_TILE, x.shape[1])
            for part_index, part in enumerate(self._parts):
                if (stack := stacks.get(part_index)) is None:  # not iterated over: another thread may load an adapter
                    continue
                shrunk = multiply_tiles(rows, stack.lora_a.mT, tiles.slot_range)
                updates = multiply_tiles(shrunk, stack.lora_b, tiles.slot_range).flatten(0, 1)
                if tiles.unpadded_indices is not None:
                    updates = updates.index_select(0, tiles.unpadded_indices)
                columns = y[:, part.output_columns.start:part.output_columns.stop]
                if tiles.target_rows is None:
                    columns.add_(updates.to(y.dtype))
                else:
                    columns.index_add_(0, tiles.target_rows, updates.to(y.dtype))


def allocate_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros. On a CPU, memory is not used before it is written, whereas `torch.zeros` writes all of it."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def multiply_tiles(tiles: Tensor, matrices: Tensor, slots: range) -> Tensor:
    """Multiply `tiles: [tiles, ROWS_PER_TILE, in]` with `matrices: [SLOTS_PER_BUCKET, in, out]`: one slot per tile, or
    one for all."""
    slot_matrices = matrices[slots.start:slots.stop]
    return torch.bmm(tiles, slot_matrices if len(slots) == len(tiles) else slot_matrices.expand(len(tiles), -1, -1))
