"""What the kernels of adapters have to do: which rows go by which place on the racks. For the rows of one step, or
written again and again where it stays, for steps that are captured.

Knows nothing of matrices, nor of who says which rows are at hand.
"""

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.racks import MOST_SIZE, Place, Shelf
from shard.device import Standing, sent

ROWS = 16  # of one adapter, that one program of a kernel has at most
ENTRY = 6  # numbers that tell a program what to do

Hanging = list[tuple[Place, list[int]]]  # by place, with all rows that go by what hangs there


class Work(NamedTuple):
    """An entry is row and size of a shelf, a slot there, the first of a program's rows in `rows`, how many, and where
    there is room for these when they are narrow."""

    entries: Tensor  # [programs, ENTRY]
    rows: Tensor  # [held], which rows at hand
    room: int  # numbers that all rows have together when they are narrow
    shelves: frozenset[Shelf] | None  # None: any, from step to step

    @classmethod
    def of(cls, hanging: Hanging, device: torch.device) -> "Work":
        entries, rows = sent(listed(hanging), device)
        room = sum(len(rows) * place.shelf.size for place, rows in hanging)
        return cls(entries.view(-1, ENTRY), rows, room, frozenset(place.shelf for place, _ in hanging))


class StandingWork:
    """For up to so many rows. Programs without any have nothing to do."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._standing = Standing([ENTRY * rows, rows], torch.int32, device)

    def of(self, rows: int) -> Work:
        """What is there when a step of so many rows is run."""
        entries, held = self._standing.lists
        return Work(entries[:ENTRY * rows].view(-1, ENTRY), held[:rows], rows * MOST_SIZE, None)

    def write(self, hanging: Hanging, rows: int) -> None:
        """For the next step, of so many rows."""
        entries, held = listed(hanging)
        self._standing.send([entries + [0] * (ENTRY * rows - len(entries)), held])


def listed(hanging: Hanging) -> list[list[int]]:
    """All entries, and all rows."""
    entries: list[int] = []
    first = room = 0
    for (shelf, slot), rows in hanging:
        for done in range(0, len(rows), ROWS):
            entries += shelf.row, shelf.size, slot, first + done, min(ROWS, len(rows) - done), room + done * shelf.size
        first, room = first + len(rows), room + len(rows) * shelf.size
    return [entries, [*chain(*(rows for _, rows in hanging))]]
