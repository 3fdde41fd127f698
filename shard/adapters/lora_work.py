"""Work list of the LoRA kernels: which rows use which adapter slot.

Made for one step, or rewritten in place at fixed addresses for captured steps.
"""

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.slots import MOST_SIZE, Place
from shard.host.device import Standing, sent

ROWS = 16  # maximum rows per entry; all have the same adapter
ENTRY = 5  # integers per entry

Hanging = list[tuple[Place, list[int]]]  # sorted by place, each with all rows of its adapter


class Work(NamedTuple):
    """Work list of the LoRA kernels.

    An entry holds table row and padded rank of a slot, index of its first row in `rows`, number of rows, and offset of
    these rows in the shrink output.
    """

    entries: Tensor  # [entries, ENTRY], of which the first `number` are valid
    rows: Tensor  # [held], indices of rows of the pass
    number: Tensor  # [1], number of valid entries
    room: int  # size of the shrink output per part and split, in elements
    places: frozenset[Place] | None  # slots used; None: unknown when the kernels are launched

    @classmethod
    def of(cls, hanging: Hanging, device: torch.device) -> "Work":
        entries, rows, number = sent(listed(hanging), device)
        room = sum(len(rows) * place.shelf.size for place, rows in hanging)
        return cls(entries.view(-1, ENTRY), rows, number, room, frozenset(place for place, _ in hanging))


class StandingWork:
    """Work list with fixed addresses for captured steps of up to `rows` rows."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._standing = Standing([ENTRY * rows, rows, 1], torch.int32, device)

    def of(self, rows: int) -> Work:
        """Return the view that a captured step of `rows` rows reads."""
        entries, held, number = self._standing.lists
        return Work(entries[:ENTRY * rows].view(-1, ENTRY), held[:rows], number, rows * MOST_SIZE, None)

    def write(self, hanging: Hanging) -> None:
        """Write the work list of the next step."""
        self._standing.send(listed(hanging))


def listed(hanging: Hanging) -> list[list[int]]:
    """Return the flattened entries, all rows, and the number of entries."""
    entries: list[int] = []
    first = room = 0
    for place, rows in hanging:
        size = place.shelf.size
        for done in range(0, len(rows), ROWS):
            entries += place.row, size, first + done, min(ROWS, len(rows) - done), room + done * size
        first, room = first + len(rows), room + len(rows) * size
    return [entries, [*chain(*(rows for _, rows in hanging))], [len(entries) // ENTRY]]
