"""Which rows of what is computed at hand go by which adapter. Who runs a model says it, its products ask.

One for each model, used by the thread that computes. Knows nothing of sequences, nor of what an adapter does to a row.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

NONE = 0  # the number of no adapter


class Run(NamedTuple):
    """Rows one behind the other."""

    adapter: int
    length: int


class Band(NamedTuple):
    """All rows that go by an adapter."""

    adapter: int
    rows: Tensor | None  # their places, rising; None: there are no others


class Bearers:
    def __init__(self, device: torch.device) -> None:
        self.bands: tuple[Band, ...] = ()
        self._runs: Sequence[Run] = ()
        self._device = device

    @contextmanager
    def rows(self, runs: Sequence[Run]) -> Iterator[None]:
        """Of all rows that are computed meanwhile."""
        before = self._runs, self.bands
        self._runs, self.bands = runs, self._banded(runs)
        try:
            yield
        finally:
            self._runs, self.bands = before

    @contextmanager
    def chosen(self, places: Tensor) -> Iterator[None]:
        """Some rows of those at hand, in another order, and some more than once."""
        if not self.bands:
            yield
            return
        numbers = [run.adapter for run in self._runs for _ in range(run.length)]
        with self.rows([Run(numbers[place], 1) for place in places.tolist()]):
            yield

    def _banded(self, runs: Sequence[Run]) -> tuple[Band, ...]:
        numbers = {run.adapter for run in runs}
        if len(numbers) <= 1:
            return tuple(Band(number, None) for number in numbers if number != NONE)
        places: dict[int, list[int]] = {number: [] for number in sorted(numbers) if number != NONE}
        first = 0
        for number, length in runs:
            if number != NONE:
                places[number] += range(first, first + length)
            first += length
        return tuple(Band(number, torch.tensor(rows, device=self._device)) for number, rows in places.items())
