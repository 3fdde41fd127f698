"""LoRA matrices of all adapters for one linear, multiplied by torch.

Matrices of one bucket share a tensor, and rows are multiplied in tiles: docs/exactness.md, "Tiles of one size".
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shard.lora.fused_linear_parts import FusedLinearPart
from shard.lora.routing import ROWS_PER_TILE, AdapterRouting, LoraRowTiles
from shard.lora.slot_assignment import SLOTS_PER_BUCKET, AdapterSlot, RankBucket


class LoraStack(NamedTuple):
    """Matrices of one part for the adapters of one bucket; zeros beyond an adapter's rank.

    In free slots, and in those of adapters that do not change the part, `lora_a` is zero.
    """

    lora_a: Tensor  # [SLOTS_PER_BUCKET, padded_rank, in]
    lora_b: Tensor  # [SLOTS_PER_BUCKET, padded_rank, out], transposed: few rows are multiplied up to twice as fast


class TorchLoraStore:
    """Implementation of `LinearLoraStore` by torch's batched matmul."""

    is_capturable = False

    def __init__(self, adapter_routing: AdapterRouting, parts: Sequence[FusedLinearPart], dtype: torch.dtype,
                 device: torch.device) -> None:
        self._adapter_routing = adapter_routing
        self._parts = parts
        self._dtype, self._device = dtype, device
        self._stacks: dict[tuple[RankBucket, int], LoraStack] = {}

    def store_adapter(self, slot: AdapterSlot, part_index: int, lora_a: Tensor, lora_b: Tensor) -> int:
        stack = self._get_or_make_stack(slot.bucket, part_index)
        for stored, matrix in ((stack.lora_a[slot.index_in_bucket], lora_a),
                               (stack.lora_b[slot.index_in_bucket], lora_b.T)):
            stored.zero_()
            stored[:matrix.shape[0], :matrix.shape[1]] = matrix
        return stack.lora_a[0].nbytes + stack.lora_b[0].nbytes

    def clear_slot(self, slot: AdapterSlot) -> None:
        for (bucket, _), stack in self._stacks.items():
            if bucket == slot.bucket:
                stack.lora_a[slot.index_in_bucket].zero_()

    def add_updates_to_output(self, x: Tensor, y: Tensor) -> None:
        for tiles in self._adapter_routing.tiles:
            self._add_tile_updates(tiles, x, y)

    def _add_tile_updates(self, tiles: LoraRowTiles, x: Tensor, y: Tensor) -> None:
        stacks = [(part, stack) for number, part in enumerate(self._parts)
                  if (stack := self._stacks.get((tiles.bucket, number))) is not None]
        if not stacks:
            return
        rows = select_rows(x, tiles.input_rows).to(self._dtype).reshape(-1, ROWS_PER_TILE, x.shape[1])
        for part, stack in stacks:
            shrunk = multiply_tiles(rows, stack.lora_a.mT, tiles.slot_range)
            updates = select_rows(multiply_tiles(shrunk, stack.lora_b, tiles.slot_range).flatten(0, 1),
                                  tiles.unpadded_indices).to(y.dtype)
            columns = y[:, part.output_columns.start:part.output_columns.stop]
            if tiles.target_rows is None:
                columns.add_(updates)
            else:
                columns.index_add_(0, tiles.target_rows, updates)

    def _get_or_make_stack(self, bucket: RankBucket, part_index: int) -> LoraStack:
        if (bucket, part_index) not in self._stacks:
            num_inputs, num_outputs = (len(self._parts[part_index].weight_slices[0].inputs),
                                       len(self._parts[part_index].output_columns))
            self._stacks[bucket, part_index] = LoraStack(*(
                allocate_zeros(shape, self._dtype, self._device)
                for shape in ((SLOTS_PER_BUCKET, bucket.padded_rank, num_inputs),
                              (SLOTS_PER_BUCKET, bucket.padded_rank, num_outputs))))
        return self._stacks[bucket, part_index]


def allocate_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros. On a CPU, memory is not used before it is written, whereas `torch.zeros` writes all of it."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def select_rows(rows: Tensor, indices: Tensor | None) -> Tensor:
    return rows if indices is None else rows.index_select(0, indices)


def multiply_tiles(tiles: Tensor, matrices: Tensor, slots: range) -> Tensor:
    """Multiply `tiles: [tiles, ROWS_PER_TILE, in]` with `matrices: [SLOTS_PER_BUCKET, in, out]`: one slot per tile, or
    one for all."""
    slot_matrices = matrices[slots.start:slots.stop]
    return torch.bmm(tiles, slot_matrices if len(slots) == len(tiles) else slot_matrices.expand(len(tiles), -1, -1))
