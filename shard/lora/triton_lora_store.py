"""LoRA matrices of all adapters for one linear, multiplied by the Triton kernels of `triton_lora_kernels.py`.

Two launches per linear, for any number of adapters.
"""

from collections.abc import Sequence
from functools import cached_property
from math import gcd

import torch
from torch import Tensor

from shard.hardware.device_setup import device_guard
from shard.hardware.device_transfers import to_device_int32
from shard.lora.lora_linear import FusedLinearPart
from shard.lora.routing import (
    INTS_PER_ENTRY,
    MAX_PADDED_RANK,
    MIN_PADDED_RANK,
    ROWS_PER_ENTRY,
    AdapterRouting,
    AdapterSlot,
    LoraWorkList,
)
from shard.lora.triton_lora_kernels import lora_expand, lora_shrink

RANKS_PER_DOT = 16  # LoRA ranks per tl.dot
INPUTS_PER_PROGRAM = 1024  # inputs per shrink program
INPUTS_PER_DOT = 64  # inputs per tl.dot
OUTPUTS_PER_PROGRAM = 128  # outputs per expand program
COLUMN_ALIGNMENT = 16  # usual divisor of column offsets and widths; lets the compiler vectorise loads
MAX_ADAPTERS = 1024  # loaded at once
TARGET_PROGRAMS = 1024  # target number of programs in a launch whose number of entries is unknown


class TritonLoraStore:
    """Implementation of `LinearLoraStore` by Triton kernels, which read the matrices through tables of addresses."""

    is_capturable = True
    is_recordable = False

    def __init__(self, adapter_routing: AdapterRouting, parts: Sequence[FusedLinearPart], dtype: torch.dtype,
                 device: torch.device) -> None:
        self._adapter_routing = adapter_routing
        self._parts = parts
        self._num_inputs = len(parts[0].inputs)
        self._dtype, self._device = dtype, device
        self._matrices: dict[AdapterSlot, dict[int, tuple[Tensor, Tensor]]] = {}  # by part
        self._dtype_example = self._make_zeros(1)
        block_entries = [number for part, columns in enumerate(part.output_columns for part in parts)
                         for first in range(0, len(columns), OUTPUTS_PER_PROGRAM)
                         for number in (part, columns.start, len(columns), first)]
        self._column_alignment = gcd(COLUMN_ALIGNMENT, *block_entries[1::4], *block_entries[2::4], *block_entries[3::4])
        self._output_blocks = to_device_int32([block_entries], device)[0].view(-1, 4)
        self._is_compiled = False

    @cached_property
    def _address_tables(self) -> tuple[Tensor, ...]:
        """Addresses of the matrices by table row of their slot and by part, for shrink and for expand.

        Allocated on first use: experts that no adapter changes need no tables.
        """
        # a step may be the first user, yet `store_adapter` must be able to write to them
        with torch.inference_mode(mode=False):
            return torch.zeros(2, MAX_ADAPTERS, len(self._parts), dtype=torch.int64, device=self._device).unbind()

    def store_adapter(self, slot: AdapterSlot, part_index: int, lora_a: Tensor, lora_b: Tensor) -> int:
        if slot.bucket.padded_rank > MAX_PADDED_RANK or slot.table_row >= MAX_ADAPTERS:
            raise RuntimeError(
                f"{MAX_ADAPTERS} adapters can be on a GPU at once, and none of a rank above {MAX_PADDED_RANK}")
        if not self._is_compiled:
            self._compile_kernels()
        size, num_outputs = slot.bucket.padded_rank, len(self._parts[part_index].output_columns)
        matrices = self._make_zeros(size, self._num_inputs), self._make_zeros(size, num_outputs)
        for stored, matrix in zip(matrices, (lora_a, lora_b.T), strict=True):
            stored[:len(matrix)] = matrix
        self._matrices.setdefault(slot, {})[part_index] = matrices
        for table, stored in zip(self._address_tables, matrices, strict=True):
            table[slot.table_row, part_index] = stored.data_ptr()
        return sum(room.nbytes for room in matrices)

    def clear_slot(self, slot: AdapterSlot) -> None:
        if self._matrices.pop(slot, None) is not None:
            for table in self._address_tables:
                table[slot.table_row] = 0

    def add_updates_to_output(self, x: Tensor, y: Tensor) -> None:
        work = self._adapter_routing.rows.lora_work
        if work is not None and (work.used_slots is None or any(place in self._matrices for place in work.used_slots)):
            self._launch_kernels(work, x, y)

    def _launch_kernels(self, work: LoraWorkList, x: Tensor, y: Tensor) -> None:
        lora_a_addresses, lora_b_addresses = self._address_tables
        num_splits, num_parts = -(-self._num_inputs // INPUTS_PER_PROGRAM), len(self._parts)
        shrunk = torch.empty(num_splits, num_parts, work.shrunk_size, dtype=torch.float32, device=self._device)
        constants = {"NUM_PARTS": num_parts, "ROWS": ROWS_PER_ENTRY, "RANKS": RANKS_PER_DOT,
                     "INTS_PER_ENTRY": INTS_PER_ENTRY}
        work_tensors = work.entries, work.num_entries, work.row_indices
        lora_shrink[choose_num_programs(work, num_parts * num_splits), num_parts, num_splits](
            x, self._dtype_example, lora_a_addresses, *work_tensors, shrunk, x.stride(0), self._num_inputs,
            work.shrunk_size, SPLIT=INPUTS_PER_PROGRAM, PIECE=INPUTS_PER_DOT, **constants)
        lora_expand[choose_num_programs(work, len(self._output_blocks)), len(self._output_blocks)](
            shrunk, self._dtype_example, lora_b_addresses, *work_tensors, self._output_blocks, y, y.stride(0),
            work.shrunk_size, num_splits, BLOCK=OUTPUTS_PER_PROGRAM, ALIGNMENT=self._column_alignment, **constants)

    def _compile_kernels(self) -> None:
        """Compile the kernels with an empty work list while the first adapter is loaded, not during a step.

        Some linears' outputs are still float32 when the update is added, so both types of `y` are compiled.
        """
        entries, rows, number = to_device_int32([[0] * INTS_PER_ENTRY, [0], [0]], self._device)
        work = LoraWorkList(entries.view(1, INTS_PER_ENTRY), rows, number, MIN_PADDED_RANK, None)
        with device_guard(self._device):
            for dtype in (self._dtype, torch.float32):
                self._launch_kernels(work, self._make_zeros(1, self._num_inputs),
                                     self._make_zeros(1, self._parts[-1].output_columns.stop).to(dtype))
        self._is_compiled = True

    def _make_zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)


def choose_num_programs(work: LoraWorkList, other_grid_size: int) -> int:
    """Return the number of programs that share the entries, if each is launched `other_grid_size` times on the other
    axes.

    In a captured step most entries are unused, and a program without work takes time, too.
    """
    return len(work.entries) if work.used_slots is not None else min(len(work.entries),
                                                                     -(-TARGET_PROGRAMS // other_grid_size))
