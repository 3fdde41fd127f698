"""Which rows of what is computed at hand go by which adapter. Who runs a model says it, its products ask.

One for each model, used by the thread that computes. Knows nothing of sequences, nor of what an adapter does to a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.racks import Racks, Shelf
from shard.adapters.work import Hanging, StandingWork, Work

NONE = 0  # the number of no adapter
# Rows are multiplied in tiles of so many, short ones filled up: then a row's bits are the same in any company.
TILE = 4


class Run(NamedTuple):
    """Rows one behind the other."""

    adapter: int
    length: int


class Band(NamedTuple):
    """All rows that go by an adapter, rising."""

    adapter: int
    rows: Tensor


class Tiles(NamedTuple):
    """Tiles of rows whose adapters hang side by side, one for each, or all of them of one adapter."""

    shelf: Shelf
    slots: range
    rows: Tensor | None  # [tiles * TILE], where a short tile is filled up with any; None: all at hand, as they lie
    held: Tensor | None  # where in the tiles the rows are that count, by row; None: all, as they lie
    targets: Tensor | None  # [held], which rows at hand these are, rising; None: all


class AtHand:
    """All rows that are computed for a while. What stands where is found out when it is first asked."""

    def __init__(self, runs: Sequence[Run], device: torch.device, racks: Racks, standing: Work | None = None) -> None:
        """`standing` tells of rows that are not known yet."""
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
    def __init__(self, device: torch.device, racks: Racks) -> None:
        self.others: set[int] = set()  # adapters that do more than add to products
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
        """None if no row goes by an adapter."""
        return self._at_hand.work

    def rows(self, runs: Sequence[Run]) -> AbstractContextManager[None]:
        """Of all rows that are computed meanwhile."""
        return self._have(self._among(runs))

    def standing(self, work: Work) -> AbstractContextManager[None]:
        """What is launched meanwhile finds the rows that this has when it is run."""
        return self._have(self._among((), work))

    def write(self, standing: StandingWork, adapters: Sequence[int]) -> bool:
        """For rows that go by these adapters, one behind the other. False if one does more than add to products."""
        if not self.others.isdisjoint(adapters):
            return False
        standing.write(hanging_on(self._racks, rows_by_adapter([Run(adapter, 1) for adapter in adapters])))
        return True

    @contextmanager
    def chosen(self, places: Tensor) -> Iterator[None]:
        """Some rows of those at hand, in another order, and some more than once."""
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
    """In tiles of their own, and where each row is there."""
    rows: list[int] = []
    places: dict[int, int] = {}
    for group in groups:
        places.update(zip(group, range(len(rows), len(rows) + len(group)), strict=True))
        rows += group + group[:1] * (-len(group) % TILE)
    if len(rows) == TILE:  # a tile alone may be computed in another way
        rows += TILE * rows[:1]
    return rows, places


def neighbours(hanging: Hanging) -> list[Hanging]:
    """Those that hang side by side and have no more than a tile of rows together; each of the others by itself."""
    found: list[Hanging] = []
    for place, rows in hanging:
        if found and len(rows) <= TILE:
            before, others = found[-1][-1]
            if len(others) <= TILE and before.shelf == place.shelf and before.slot + 1 == place.slot:
                found[-1].append((place, rows))
                continue
        found.append([(place, rows)])
    return found
