"""What the kernels of adapters have to do: which rows go by which place on the racks. For the rows of one step, or
written again and again where it stays, for steps that are captured.

Knows nothing of matrices, nor of who says which rows are at hand.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.racks import MOST_SIZE, Place, Shelf
from shard.device import Standing, sent

ROWS = 16  # of one adapter, that one program of a kernel has at most
ENTRY = 5  # numbers that tell a program what to do

Hanging = Sequence[tuple[Place, list[int]]]  # with all rows that go by what hangs there


class Work(NamedTuple):
    entries: Tensor  # [programs, ENTRY]: row and size of a shelf, slot there, the first of its rows in `rows`, how many
    rows: Tensor  # [held], which rows at hand
    size: int  # of the widest shelf
    shelves: frozenset[Shelf] | None  # None: any, from step to step

    @classmethod
    def of(cls, hanging: Hanging, device: torch.device) -> "Work":
        entries, rows = sent(listed(hanging), device)
        shelves = frozenset(place.shelf for place, _ in hanging)
        return cls(entries.view(-1, ENTRY), rows, max(shelf.size for shelf in shelves), shelves)


class StandingWork:
    """For up to so many rows. Programs without any have nothing to do."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._standing = Standing([ENTRY * rows, rows], torch.int32, device)

    def of(self, rows: int) -> Work:
        """What is there when a step of so many rows is run."""
        entries, held = self._standing.lists
        return Work(entries[:ENTRY * rows].view(-1, ENTRY), held[:rows], MOST_SIZE, None)

    def write(self, hanging: Hanging, rows: int) -> None:
        """For the next step, of so many rows."""
        entries, held = listed(hanging)
        self._standing.send([entries + [0] * (ENTRY * rows - len(entries)), held])


def listed(hanging: Hanging) -> list[list[int]]:
    """All entries, and all rows."""
    firsts = accumulate((len(rows) for _, rows in hanging), initial=0)
    entries: Iterable[tuple[int, ...]] = (
        (place.shelf.row, place.shelf.size, place.slot, first + done, min(ROWS, len(rows) - done))
        for first, (place, rows) in zip(firsts, hanging, strict=False) for done in range(0, len(rows), ROWS))
    return [[*chain(*entries)], [*chain(*(rows for _, rows in hanging))]]
