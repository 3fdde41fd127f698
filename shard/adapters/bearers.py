"""Which rows of what is computed at hand go by which adapter. Who runs a model says it, its products ask.

One for each model, used by the thread that computes. Knows nothing of sequences, nor of what an adapter does to a row.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.racks import Place, Racks, Shelf

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


class Bearers:
    def __init__(self, device: torch.device, racks: Racks) -> None:
        self.bands: tuple[Band, ...] = ()
        self.tiles: tuple[Tiles, ...] = ()
        self._runs: Sequence[Run] = ()
        self._device = device
        self._racks = racks

    @contextmanager
    def rows(self, runs: Sequence[Run]) -> Iterator[None]:
        """Of all rows that are computed meanwhile."""
        before = self._runs, self.bands, self.tiles
        members = rows_by_adapter(runs)
        self._runs = runs
        self.bands = tuple(Band(adapter, self._tensor(rows)) for adapter, rows in members.items())
        self.tiles = tuple(self._tiled(members, sum(run.length for run in runs)))
        try:
            yield
        finally:
            self._runs, self.bands, self.tiles = before

    @contextmanager
    def chosen(self, places: Tensor) -> Iterator[None]:
        """Some rows of those at hand, in another order, and some more than once."""
        if not self.bands:
            yield
            return
        numbers = [run.adapter for run in self._runs for _ in range(run.length)]
        with self.rows([Run(numbers[place], 1) for place in places.tolist()]):
            yield

    def _tiled(self, members: dict[int, list[int]], num_rows: int) -> Iterator[Tiles]:
        hanging = sorted((place, rows) for adapter, rows in members.items()
                         if (place := self._racks.find(adapter)) is not None)
        for side_by_side in neighbours(hanging):
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


def neighbours(hanging: list[tuple[Place, list[int]]]) -> list[list[tuple[Place, list[int]]]]:
    """Those that hang side by side and have no more than a tile of rows together; each of the others by itself."""
    found: list[list[tuple[Place, list[int]]]] = []
    for place, rows in hanging:
        if found and len(rows) <= TILE:
            before, others = found[-1][-1]
            if len(others) <= TILE and before.shelf == place.shelf and before.slot + 1 == place.slot:
                found[-1].append((place, rows))
                continue
        found.append([(place, rows)])
    return found
