"""Work list of the LoRA kernels: which rows use which adapter slot.

Made for one step, or rewritten in place at fixed addresses for captured steps.
"""

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from shard.hardware.device_transfers import StaticDeviceBuffers, to_device_int32
from shard.lora.slot_assignment import MAX_PADDED_RANK, AdapterSlot

ROWS_PER_ENTRY = 16  # maximum rows per entry; all have the same adapter
INTS_PER_ENTRY = 5  # integers per entry

RowsBySlot = list[tuple[AdapterSlot, list[int]]]  # sorted by slot, each with all rows of its adapter


class LoraWorkList(NamedTuple):
    """Work list of the LoRA kernels.

    An entry holds table row and padded rank of a slot, index of its first row in `row_indices`, number of rows, and
    offset of these rows in the shrink output.
    """

    entries: Tensor  # [entries, INTS_PER_ENTRY], of which the first `num_entries` are valid
    row_indices: Tensor  # indices of rows of the pass
    num_entries: Tensor  # [1], number of valid entries
    shrunk_size: int  # size of the shrink output per part and split, in elements
    used_slots: frozenset[AdapterSlot] | None  # slots used; None: unknown when the kernels are launched

    @classmethod
    def from_rows_by_slot(cls, rows_by_slot: RowsBySlot, device: torch.device) -> "LoraWorkList":
        entries, rows, number = to_device_int32(flatten_work(rows_by_slot), device)
        room = sum(len(rows) * place.bucket.padded_rank for place, rows in rows_by_slot)
        return cls(entries.view(-1, INTS_PER_ENTRY), rows, number, room, frozenset(place for place, _ in rows_by_slot))


class StaticLoraWorkList:
    """Work list with fixed addresses for captured steps of up to `max_rows` rows."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._static_buffers = StaticDeviceBuffers([INTS_PER_ENTRY * max_rows, max_rows, 1], torch.int32, device)

    def view_rows(self, num_rows: int) -> LoraWorkList:
        """Return the view that a captured step of `num_rows` rows reads."""
        entries, held, number = self._static_buffers.device_lists
        return LoraWorkList(entries[:INTS_PER_ENTRY * num_rows].view(-1, INTS_PER_ENTRY), held[:num_rows], number,
                            num_rows * MAX_PADDED_RANK, None)

    def write_rows_by_slot(self, rows_by_slot: RowsBySlot) -> None:
        """Write the work list of the next step."""
        self._static_buffers.copy_to_device(flatten_work(rows_by_slot))


def flatten_work(rows_by_slot: RowsBySlot) -> list[list[int]]:
    """Return the flattened entries, all rows, and the number of entries."""
    entries: list[int] = []
    first = shrunk_offset = 0
    for place, rows in rows_by_slot:
        size = place.bucket.padded_rank
        for num_listed in range(0, len(rows), ROWS_PER_ENTRY):
            entries += (place.table_row, size, first + num_listed, min(ROWS_PER_ENTRY, len(rows) - num_listed),
                        shrunk_offset + num_listed * size)
        first, shrunk_offset = first + len(rows), shrunk_offset + len(rows) * size
    return [entries, [*chain(*(rows for _, rows in rows_by_slot))], [len(entries) // INTS_PER_ENTRY]]
