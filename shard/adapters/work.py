"""What the kernels of adapters have to do: which rows go by which place on the racks. For the rows of one step, or
written again and again where it stays, for steps that are captured.

Knows nothing of matrices, nor of who says which rows are at hand.
"""

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.racks import MOST_SIZE, Place
from shard.device import Standing, sent

ROWS = 16  # of one adapter, that an entry has at most
ENTRY = 5  # numbers that tell a program what to do

Hanging = list[tuple[Place, list[int]]]  # by place, with all rows that go by what hangs there


class Work(NamedTuple):
    """An entry is row and size of a place, the first of its rows in `rows`, how many, and where there is room for these
    when they are narrow."""

    entries: Tensor  # [entries, ENTRY], of which the first ones count
    rows: Tensor  # [held], which rows at hand
    number: Tensor  # [1], of entries that count
    room: int  # numbers that all rows have together when they are narrow
    places: frozenset[Place] | None  # None: any, from step to step

    @classmethod
    def of(cls, hanging: Hanging, device: torch.device) -> "Work":
        entries, rows, number = sent(listed(hanging), device)
        room = sum(len(rows) * place.shelf.size for place, rows in hanging)
        return cls(entries.view(-1, ENTRY), rows, number, room, frozenset(place for place, _ in hanging))


class StandingWork:
    """For up to so many rows."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._standing = Standing([ENTRY * rows, rows, 1], torch.int32, device)

    def of(self, rows: int) -> Work:
        """What is there when a step of so many rows is run."""
        entries, held, number = self._standing.lists
        return Work(entries[:ENTRY * rows].view(-1, ENTRY), held[:rows], number, rows * MOST_SIZE, None)

    def write(self, hanging: Hanging) -> None:
        """For the next step."""
        self._standing.send(listed(hanging))


def listed(hanging: Hanging) -> list[list[int]]:
    """All entries, all rows, and the number of entries."""
    entries: list[int] = []
    first = room = 0
    for place, rows in hanging:
        size = place.shelf.size
        for done in range(0, len(rows), ROWS):
            entries += place.row, size, first + done, min(ROWS, len(rows) - done), room + done * size
        first, room = first + len(rows), room + len(rows) * size
    return [entries, [*chain(*(rows for _, rows in hanging))], [len(entries) // ENTRY]]
