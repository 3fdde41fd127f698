"""Map from rows of the current forward pass to adapters. The runner sets it; LoRA layers read it.

One instance per model. Rows are set and read only by the thread that runs the model. Loading an adapter, in another
thread, changes only `others` and the racks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.lora_work import Hanging, StandingWork, Work
from shard.adapters.slots import Racks, Shelf

NONE = 0  # adapter number of rows without an adapter
# Rows are multiplied in tiles of this many, the last one padded, so that a row's bits do not depend on other rows.
TILE = 4


class Run(NamedTuple):
    """Consecutive rows with one adapter."""

    adapter: int
    length: int


class Band(NamedTuple):
    """All rows of one adapter, in ascending order."""

    adapter: int
    rows: Tensor


class Tiles(NamedTuple):
    """Tiles of rows whose adapters have adjacent slots: one tile per slot, or several tiles of a single slot."""

    shelf: Shelf
    slots: range
    rows: Tensor | None  # [tiles * TILE], rows of the pass, short tiles padded with any row; None: all rows in order
    held: Tensor | None  # [targets], index in the tiles of each row that is no padding; None: all in order
    targets: Tensor | None  # [held], the same rows as indices in the pass, ascending; None: all rows


class AtHand:
    """Adapters of the rows of one forward pass. Derived tensors are built on first use."""

    def __init__(self, runs: Sequence[Run], device: torch.device, racks: Racks, standing: Work | None = None) -> None:
        """`standing`: work list for rows that are not known yet, used instead of one made of `runs`."""
        self.runs = runs
        self._standing = standing
        self._members = rows_by_adapter(runs)
        self._device = device
        self._racks = racks

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        return tuple(Band(adapter, self._tensor(rows)) for adapter, rows in self._members.items())

    @cached_property
    def tiles(self) -> tuple[Tiles, ...]:
        return tuple(self._tiled(sum(run.length for run in self.runs)))

    @cached_property
    def work(self) -> Work | None:
        if self._standing is not None:
            return self._standing
        hanging = self._hanging()
        return Work.of(hanging, self._device) if hanging else None

    def _hanging(self) -> Hanging:
        return hanging_on(self._racks, self._members)

    def _tiled(self, num_rows: int) -> Iterator[Tiles]:
        for side_by_side in neighbours(self._hanging()):
            first, last = side_by_side[0][0], side_by_side[-1][0]
            rows, places = laid_out([rows for _, rows in side_by_side])
            targets = sorted(places)
            yield Tiles(first.shelf, range(first.slot, last.slot + 1), self._unless_all(rows, num_rows),
                        self._unless_all([places[row] for row in targets], len(rows)),
                        self._unless_all(targets, num_rows))

    def _unless_all(self, numbers: list[int], count: int) -> Tensor | None:
        return None if numbers == [*range(count)] else self._tensor(numbers)

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self._device)


class Bearers:
    """Map from rows of the current forward pass to adapters."""

    def __init__(self, device: torch.device, racks: Racks) -> None:
        self.others: set[int] = set()  # adapters that also replace a head or change an embedding
        self._device = device
        self._racks = racks
        self._at_hand = self._among(())

    @property
    def bands(self) -> tuple[Band, ...]:
        return self._at_hand.bands

    @property
    def tiles(self) -> tuple[Tiles, ...]:
        return self._at_hand.tiles

    @property
    def work(self) -> Work | None:
        """Work list of the LoRA kernels; None if no row has an adapter."""
        return self._at_hand.work

    def rows(self, runs: Sequence[Run]) -> AbstractContextManager[None]:
        """Set the adapters of all rows computed within the context."""
        return self._have(self._among(runs))

    def standing(self, work: Work) -> AbstractContextManager[None]:
        """Within the context, make launched kernels read `work` when they run, as a captured CUDA graph needs."""
        return self._have(self._among((), work))

    def write(self, standing: StandingWork, adapters: Sequence[int]) -> bool:
        """Write the work list for rows with these adapters, in order.

        Return False, without writing, if an adapter also replaces a head or changes an embedding.
        """
        if not self.others.isdisjoint(adapters):
            return False
        standing.write(hanging_on(self._racks, rows_by_adapter([Run(adapter, 1) for adapter in adapters])))
        return True

    @contextmanager
    def chosen(self, places: Tensor) -> Iterator[None]:
        """Set the adapters for a selection of the current rows, in any order; a row may be selected several times."""
        if not self.bands:
            yield
            return
        numbers = [run.adapter for run in self._at_hand.runs for _ in range(run.length)]
        with self.rows([Run(numbers[place], 1) for place in places.tolist()]):
            yield

    @contextmanager
    def _have(self, at_hand: AtHand) -> Iterator[None]:
        before, self._at_hand = self._at_hand, at_hand
        try:
            yield
        finally:
            self._at_hand = before

    def _among(self, runs: Sequence[Run], standing: Work | None = None) -> AtHand:
        return AtHand(runs, self._device, self._racks, standing)


def hanging_on(racks: Racks, members: Mapping[int, list[int]]) -> Hanging:
    return sorted((place, rows) for adapter, rows in members.items() if (place := racks.find(adapter)) is not None)


def rows_by_adapter(runs: Sequence[Run]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    first = 0
    for adapter, length in runs:
        if adapter != NONE:
            members.setdefault(adapter, []).extend(range(first, first + length))
        first += length
    return members


def laid_out(groups: list[list[int]]) -> tuple[list[int], dict[int, int]]:
    """Pack each group into tiles of its own. Return the padded rows and the index of each row among them."""
    rows: list[int] = []
    places: dict[int, int] = {}
    for group in groups:
        places.update(zip(group, range(len(rows), len(rows) + len(group)), strict=True))
        rows += group + group[:1] * (-len(group) % TILE)
    if len(rows) == TILE:  # torch may compute a single tile with another kernel, so there are at least two
        rows += TILE * rows[:1]
    return rows, places


def neighbours(hanging: Hanging) -> list[Hanging]:
    """Group adjacent slots with at most one tile of rows each; every other slot is a group of its own."""
    found: list[Hanging] = []
    for place, rows in hanging:
        if found and len(rows) <= TILE:
            before, others = found[-1][-1]
            if len(others) <= TILE and before.shelf == place.shelf and before.slot + 1 == place.slot:
                found[-1].append((place, rows))
                continue
        found.append([(place, rows)])
    return found
