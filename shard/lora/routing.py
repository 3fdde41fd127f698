"""Map from rows of the current forward pass to adapters. The runner sets it; LoRA layers read it.

One instance per model. Rows are set and read only by the thread that runs the model. Loading an adapter, in another
thread, changes only `head_or_embedding_adapters` and the slots.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from shard.lora.lora_work_list import LoraWorkList, RowsBySlot, StaticLoraWorkList
from shard.lora.slot_assignment import AdapterSlots, RankBucket

NO_ADAPTER = 0  # adapter number of rows without an adapter
# Rows are multiplied in tiles of this many, the last one padded: docs/exactness.md, "Tiles of one size".
ROWS_PER_TILE = 4


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


class RowAdapters:
    """Adapters of the rows of one forward pass. Derived tensors are built on first use."""

    def __init__(self, runs: Sequence[AdapterRowSpan], device: torch.device, adapter_slots: AdapterSlots,
                 static_work: LoraWorkList | None = None) -> None:
        """`static_work`: work list for rows that are not known yet, used instead of one made of `runs`."""
        self.runs = runs
        self._static_work = static_work
        self._rows_by_adapter = group_rows_by_adapter(runs)
        self._device = device
        self._adapter_slots = adapter_slots

    @cached_property
    def adapter_rows(self) -> tuple[AdapterRows, ...]:
        return tuple(AdapterRows(adapter, self._make_tensor(rows)) for adapter, rows in self._rows_by_adapter.items())

    @cached_property
    def tiles(self) -> tuple[LoraRowTiles, ...]:
        return tuple(self._make_tiles(sum(run.length for run in self.runs)))

    @cached_property
    def lora_work(self) -> LoraWorkList | None:
        if self._static_work is not None:
            return self._static_work
        rows_by_slot = self._rows_by_slot()
        return LoraWorkList.from_rows_by_slot(rows_by_slot, self._device) if rows_by_slot else None

    def _rows_by_slot(self) -> RowsBySlot:
        return group_rows_by_slot(self._adapter_slots, self._rows_by_adapter)

    def _make_tiles(self, num_rows: int) -> Iterator[LoraRowTiles]:
        for adjacent in group_adjacent_slots(self._rows_by_slot()):
            first, last = adjacent[0][0], adjacent[-1][0]
            rows, index_of_row = pack_groups_into_tiles([rows for _, rows in adjacent])
            targets = sorted(index_of_row)
            yield LoraRowTiles(first.bucket, range(first.index_in_bucket, last.index_in_bucket + 1),
                               self._tensor_unless_all(rows, num_rows),
                               self._tensor_unless_all([index_of_row[row] for row in targets], len(rows)),
                               self._tensor_unless_all(targets, num_rows))

    def _tensor_unless_all(self, indices: list[int], count: int) -> Tensor | None:
        return None if indices == [*range(count)] else self._make_tensor(indices)

    def _make_tensor(self, indices: list[int]) -> Tensor:
        return torch.tensor(indices, device=self._device)


class AdapterRouting:
    """Map from rows of the current forward pass to adapters."""

    def __init__(self, device: torch.device, adapter_slots: AdapterSlots) -> None:
        self.head_or_embedding_adapters: set[int] = set()  # adapters that also replace a head or change an embedding
        self._device = device
        self._adapter_slots = adapter_slots
        self._current = self._make_row_adapters(())

    @property
    def adapter_rows(self) -> tuple[AdapterRows, ...]:
        return self._current.adapter_rows

    @property
    def tiles(self) -> tuple[LoraRowTiles, ...]:
        return self._current.tiles

    @property
    def lora_work(self) -> LoraWorkList | None:
        """Work list of the LoRA kernels; None if no row has an adapter."""
        return self._current.lora_work

    def route_rows(self, runs: Sequence[AdapterRowSpan]) -> AbstractContextManager[None]:
        """Set the adapters of all rows computed within the context."""
        return self._use_row_adapters(self._make_row_adapters(runs))

    def use_static_work(self, static_work: LoraWorkList) -> AbstractContextManager[None]:
        """Within the context, make launched kernels read `static_work` when they run, as a captured CUDA graph
        needs."""
        return self._use_row_adapters(self._make_row_adapters((), static_work))

    def write_static_work(self, static_work: StaticLoraWorkList, adapters: Sequence[int]) -> bool:
        """Write the work list for rows with these adapters, in order.

        Return False, without writing, if an adapter also replaces a head or changes an embedding.
        """
        if not self.head_or_embedding_adapters.isdisjoint(adapters):
            return False
        static_work.write_rows_by_slot(group_rows_by_slot(
            self._adapter_slots, group_rows_by_adapter([AdapterRowSpan(adapter, 1) for adapter in adapters])))
        return True

    @contextmanager
    def route_selected_rows(self, selected_rows: Tensor) -> Iterator[None]:
        """Set the adapters for a selection of the current rows, in any order; a row may be selected several times."""
        if not self.adapter_rows:
            yield
            return
        adapters = [run.adapter for run in self._current.runs for _ in range(run.length)]
        with self.route_rows([AdapterRowSpan(adapters[place], 1) for place in selected_rows.tolist()]):
            yield

    @contextmanager
    def _use_row_adapters(self, row_adapters: RowAdapters) -> Iterator[None]:
        before, self._current = self._current, row_adapters
        try:
            yield
        finally:
            self._current = before

    def _make_row_adapters(self, runs: Sequence[AdapterRowSpan],
                           static_work: LoraWorkList | None = None) -> RowAdapters:
        return RowAdapters(runs, self._device, self._adapter_slots, static_work)


def group_rows_by_slot(adapter_slots: AdapterSlots, rows_of_adapters: Mapping[int, list[int]]) -> RowsBySlot:
    return sorted((place, rows) for adapter, rows in rows_of_adapters.items()
                  if (place := adapter_slots.find(adapter)) is not None)


def group_rows_by_adapter(runs: Sequence[AdapterRowSpan]) -> dict[int, list[int]]:
    rows_of_adapter: dict[int, list[int]] = {}
    first = 0
    for adapter, length in runs:
        if adapter != NO_ADAPTER:
            rows_of_adapter.setdefault(adapter, []).extend(range(first, first + length))
        first += length
    return rows_of_adapter


def pack_groups_into_tiles(groups: list[list[int]]) -> tuple[list[int], dict[int, int]]:
    """Pack each group into tiles of its own. Return the padded rows and the index of each row among them."""
    rows: list[int] = []
    index_of_row: dict[int, int] = {}
    for group in groups:
        index_of_row.update(zip(group, range(len(rows), len(rows) + len(group)), strict=True))
        rows += group + group[:1] * (-len(group) % ROWS_PER_TILE)
    if len(rows) == ROWS_PER_TILE:  # docs/exactness.md, "A single row is computed as two"
        rows += ROWS_PER_TILE * rows[:1]
    return rows, index_of_row


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
