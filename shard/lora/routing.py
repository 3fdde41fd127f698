"""Which rows of a forward pass use which adapter, and in which slots the matrices of loaded adapters are.

Torch's store groups slots by LoRA rank rounded up to a power of two, so that one batched matmul serves several
adapters. The native store reads `adapter_table_rows`, and Triton's kernels read work lists.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shard.hardware.device_transfers import StaticDeviceBuffers, to_device_int32

NO_ADAPTER = 0  # adapter number of rows without an adapter
# Rows are multiplied in tiles of this many, the last one padded: docs/concepts/exactness.md, "Tiles of one size".
ROWS_PER_TILE = 4
SLOTS_PER_BUCKET = 16  # adapter slots per bucket
# smallest and largest padded rank; the largest is also the highest rank supported
MIN_PADDED_RANK, MAX_PADDED_RANK = 8, 1024
ROWS_PER_ENTRY = 16  # maximum rows per entry of a work list; all have the same adapter
INTS_PER_ENTRY = 5  # integers per entry


class RankBucket(NamedTuple):
    """Group of adapters of one padded LoRA rank, whose matrices are stacked."""

    padded_rank: int  # padded rank of its adapters
    bucket_number: int


class AdapterSlot(NamedTuple):
    """Place of an adapter's matrices in its bucket, and its row in tables of all loaded adapters."""

    bucket: RankBucket
    index_in_bucket: int
    table_row: int  # index in a table of all loaded adapters, across buckets


RowsBySlot = list[tuple[AdapterSlot, list[int]]]  # sorted by slot, each with all rows of its adapter
AdapterTableRows = np.ndarray[Any, np.dtype[np.int32]]


def pad_rank(rank: int) -> int:
    """Return the padded rank, which depends on the adapter's own rank alone: docs/concepts/exactness.md, "Tiles of one
    size"."""
    return max(MIN_PADDED_RANK, 1 << (rank - 1).bit_length())


class AdapterSlots:
    """Assignment of loaded adapters to slots."""

    def __init__(self) -> None:
        self._slot_of_adapter: dict[int, AdapterSlot] = {}

    def allocate_slot(self, adapter: int, rank: int) -> AdapterSlot:
        """Allocate the first free slot and row to the adapter."""
        slots = {(place.bucket, place.index_in_bucket) for place in self._slot_of_adapter.values()}
        rows = {place.table_row for place in self._slot_of_adapter.values()}
        all_slots = ((RankBucket(pad_rank(rank), number), index) for number in count()
                     for index in range(SLOTS_PER_BUCKET))
        slot = next(slot for slot in all_slots if slot not in slots)
        place = self._slot_of_adapter[adapter] = AdapterSlot(*slot, next(row for row in count() if row not in rows))
        return place

    def release(self, adapter: int) -> None:
        self._slot_of_adapter.pop(adapter, None)

    def find(self, adapter: int) -> AdapterSlot | None:
        """Return the adapter's slot; None if the adapter has no LoRA matrices of a linear."""
        return self._slot_of_adapter.get(adapter)


class AdapterRowSpan(NamedTuple):
    """Consecutive rows with one adapter."""

    adapter: int
    length: int


class AdapterRows(NamedTuple):
    """All rows of one adapter, in ascending order."""

    adapter: int
    rows: Tensor


class LoraRowTiles(NamedTuple):
    """Tiles of rows whose adapters have adjacent slots: one tile per slot, or several tiles of a single slot."""

    bucket: RankBucket
    slot_range: range
    # [tiles * ROWS_PER_TILE], rows of the pass, short tiles padded with any row; None: all rows in order
    input_rows: Tensor | None
    unpadded_indices: Tensor | None  # [targets], index in the tiles of each row that is no padding; None: all in order
    target_rows: Tensor | None  # [held], the same rows as indices in the pass, ascending; None: all rows


class LoraWorkList(NamedTuple):
    """Work list of the LoRA kernels; `triton_lora_kernels.py` says what an entry holds."""

    entries: Tensor  # [entries, INTS_PER_ENTRY], of which the first `num_entries` are valid
    row_indices: Tensor  # indices of rows of the pass
    num_entries: Tensor  # [1], number of valid entries
    shrunk_size: int  # size of the shrink output per part and split, in elements
    used_slots: frozenset[AdapterSlot] | None  # slots used; None: unknown when the kernels are launched


class RowAdapters:
    """Adapters of the rows of one forward pass. What linears need of them is made on first use."""

    def __init__(self, spans: Sequence[AdapterRowSpan], device: torch.device, adapter_slots: AdapterSlots,
                 static_work: LoraWorkList | None = None, static_table_rows: AdapterTableRows | None = None) -> None:
        """`static_work` and `static_table_rows` are for rows that are not known yet, and are used instead of what
        `spans` would give."""
        self._spans, self._device, self._adapter_slots = spans, device, adapter_slots
        self._static_work, self._static_table_rows = static_work, static_table_rows

    @cached_property
    def _rows_by_adapter(self) -> dict[int, list[int]]:
        rows_by_adapter: dict[int, list[int]] = {}
        first = 0
        for adapter, length in self._spans:
            if adapter != NO_ADAPTER:
                rows_by_adapter.setdefault(adapter, []).extend(range(first, first + length))
            first += length
        return rows_by_adapter

    @cached_property
    def rows_by_slot(self) -> RowsBySlot:
        return sorted([(place, rows) for adapter, rows in self._rows_by_adapter.items()
                       if (place := self._adapter_slots.find(adapter)) is not None])

    @property
    def may_have_lora_matrices(self) -> bool:
        """Whether a row may have LoRA matrices of a linear."""
        return self._static_table_rows is not None or bool(self.rows_by_slot)

    @cached_property
    def adapter_table_rows(self) -> AdapterTableRows:
        """The table row of each row's adapter, -1 without LoRA matrices."""
        if self._static_table_rows is not None:
            return self._static_table_rows
        adapter_table_rows = np.full(sum(length for _, length in self._spans), -1, dtype=np.int32)
        for place, rows in self.rows_by_slot:
            adapter_table_rows[rows] = place.table_row
        return adapter_table_rows

    @property
    def max_rank(self) -> int:
        """The highest padded rank of the rows' adapters; the highest supported in a recording, whose rows change."""
        return (MAX_PADDED_RANK if self._static_table_rows is not None
                else max(place.bucket.padded_rank for place, _ in self.rows_by_slot))

    @cached_property
    def adapter_rows(self) -> tuple[AdapterRows, ...]:
        return tuple(AdapterRows(adapter, torch.tensor(rows, device=self._device))
                     for adapter, rows in self._rows_by_adapter.items())

    @cached_property
    def tiles(self) -> tuple[LoraRowTiles, ...]:
        num_rows = sum(length for _, length in self._spans)
        all_tiles: list[LoraRowTiles] = []
        for adjacent in group_adjacent_slots(self.rows_by_slot):
            rows: list[int] = []  # padded
            index_of_row: dict[int, int] = {}
            for _, rows_of_slot in adjacent:
                index_of_row.update(zip(rows_of_slot, count(len(rows)), strict=False))
                rows += rows_of_slot + rows_of_slot[:1] * (-len(rows_of_slot) % ROWS_PER_TILE)
            if len(rows) == ROWS_PER_TILE:  # docs/concepts/exactness.md, "A single row is computed as two"
                rows += ROWS_PER_TILE * rows[:1]
            targets = sorted(index_of_row)
            first, last = adjacent[0][0], adjacent[-1][0]
            all_tiles.append(LoraRowTiles(
                first.bucket, range(first.index_in_bucket, last.index_in_bucket + 1),
                self._make_row_indices(rows, num_rows),
                self._make_row_indices(list(map(index_of_row.__getitem__, targets)), len(rows)),
                self._make_row_indices(targets, num_rows)))
        return tuple(all_tiles)

    def _make_row_indices(self, indices: list[int], num_rows: int) -> Tensor | None:
        """Return None for all rows in order, so that nothing is gathered."""
        return None if indices == [*range(num_rows)] else torch.tensor(indices, device=self._device)

    @cached_property
    def lora_work(self) -> LoraWorkList | None:
        """Work list of the LoRA kernels; None if no row has an adapter."""
        if self._static_work is not None or not self.rows_by_slot:
            return self._static_work
        entries, rows, number = to_device_int32(flatten_work(self.rows_by_slot), self._device)
        shrunk_size = sum(len(rows) * place.bucket.padded_rank for place, rows in self.rows_by_slot)
        return LoraWorkList(entries.view(-1, INTS_PER_ENTRY), rows, number, shrunk_size,
                            frozenset(place for place, _ in self.rows_by_slot))

    def select_rows(self, selected_rows: Tensor) -> "RowAdapters":
        """Return the adapters of a selection of the rows, in any order; a row may be selected several times."""
        if not self._rows_by_adapter:
            return self
        adapters = [span.adapter for span in self._spans for _ in range(span.length)]
        return RowAdapters([AdapterRowSpan(adapters[row], 1) for row in selected_rows.tolist()], self._device,
                           self._adapter_slots)


class StaticLoraWorkList:
    """Work list with fixed addresses for captured steps of up to `max_rows` rows."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.buffers = StaticDeviceBuffers([INTS_PER_ENTRY * max_rows, max_rows, 1], torch.int32, device)

    def view_rows(self, num_rows: int) -> LoraWorkList:
        """Return the view that a captured step of `num_rows` rows reads."""
        entries, held, number = self.buffers.device_lists
        return LoraWorkList(entries[:INTS_PER_ENTRY * num_rows].view(-1, INTS_PER_ENTRY), held[:num_rows], number,
                            num_rows * MAX_PADDED_RANK, None)


class AdapterRouting:
    """Adapters of the rows that a model computes next. The runner sets `rows` before every pass, and the model's
    linears and embeddings read them.

    One instance per model. Rows are set and read only by the thread that runs the model. Loading an adapter, in
    another thread, changes only `head_or_embedding_adapters` and the slots.
    """

    def __init__(self, device: torch.device, adapter_slots: AdapterSlots) -> None:
        self.head_or_embedding_adapters: set[int] = set()  # adapters that also replace a head or change an embedding
        self._device = device
        self._adapter_slots = adapter_slots
        self.set_rows(())

    def set_rows(self, spans: Sequence[AdapterRowSpan], static_work: LoraWorkList | None = None,
                 static_table_rows: AdapterTableRows | None = None) -> None:
        """Set the adapters of all rows of the passes that follow. With `static_work`, launched kernels read the rows
        from it when they run, as a captured CUDA graph needs; with `static_table_rows` recorded kernels do so on a
        CPU."""
        self.rows = RowAdapters(spans, self._device, self._adapter_slots, static_work, static_table_rows)

    def write_static_work(self, static_work: StaticLoraWorkList, adapters: Sequence[int]) -> bool:
        """Write the work list for rows with these adapters, in order.

        Return False, without writing, if an adapter also replaces a head or changes an embedding.
        """
        if not self.head_or_embedding_adapters.isdisjoint(adapters):
            return False
        rows = RowAdapters([AdapterRowSpan(adapter, 1) for adapter in adapters], self._device, self._adapter_slots)
        static_work.buffers.copy_to_device(flatten_work(rows.rows_by_slot))
        return True


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


def group_adjacent_slots(rows_by_slot: RowsBySlot) -> list[RowsBySlot]:
    """Group adjacent slots with at most one tile of rows each; every other slot is a group of its own."""
    groups: list[RowsBySlot] = []
    for place, rows in rows_by_slot:
        if groups and len(rows) <= ROWS_PER_TILE:
            previous_slot, previous_rows = groups[-1][-1]
            if (len(previous_rows) <= ROWS_PER_TILE and previous_slot.bucket == place.bucket
                and previous_slot.index_in_bucket + 1 == place.index_in_bucket):
                groups[-1].append((place, rows))
                continue
        groups.append([(place, rows)])
    return groups
