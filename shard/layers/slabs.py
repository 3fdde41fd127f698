"""The matrices of all adapters at one product, multiplied by Triton kernels: two launches, whoever hangs wherever. The
kernels are in `adapter_kernels.py`.
"""

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor

from shard.adapters.bearers import Bearers
from shard.adapters.racks import KINDS, LEAST_SIZE, MOST_SIZE, Place
from shard.adapters.work import ENTRY, ROWS, Work
from shard.device import at, sent
from shard.layers.adapter_kernels import expand, shrink
from shard.layers.portions import Part

RANKS = 16  # that a product is computed with at once
SPLIT = 1024  # inputs that one program takes
PIECE = 64  # of them at once
BLOCK = 128  # outputs of one program
EVEN = 16  # of which the first and the end are multiples, as a rule: then several are read at once
MOST_PLACES = 8192  # of all sizes
PROGRAMS = 1024  # of a launch, at least, where there is so much to do


class Slabs:
    steady = True

    def __init__(self, bearers: Bearers, parts: Sequence[Part], dtype: torch.dtype, device: torch.device) -> None:
        self._bearers = bearers
        self._parts = parts
        self._num_inputs = len(parts[0].portions[0].inputs)
        self._dtype, self._device = dtype, device
        self._matrices: dict[Place, dict[int, tuple[Tensor, Tensor]]] = {}  # by part
        self._like = self._zeros(1)
        # Where they are, by the row of their place and by part: of what makes rows narrow, and of what makes them wide.
        self._tables = torch.zeros(2, MOST_PLACES, len(parts), dtype=torch.int64, device=device).unbind()
        blocks = [number for part, columns in enumerate(part.columns for part in parts)
                  for first in range(0, len(columns), BLOCK) for number in (part, columns.start, len(columns), first)]
        self._even = gcd(EVEN, *blocks[1::4], *blocks[2::4], *blocks[3::4])
        self._blocks = sent([blocks], device)[0].view(-1, 4)
        self._is_compiled = False

    def put(self, place: Place, part: int, down: Tensor, up: Tensor) -> int:
        if place.shelf.size > MOST_SIZE or place.row >= MOST_PLACES:
            raise RuntimeError(f"of about one rank {MOST_PLACES // KINDS} adapters can be there at once, and of none "
                               f"above {MOST_SIZE}")
        if not self._is_compiled:
            self._compile()
        size, num_outputs = place.shelf.size, len(self._parts[part].columns)
        matrices = self._zeros(size, self._num_inputs), self._zeros(size, num_outputs)
        for table, room, matrix in zip(self._tables, matrices, (down, up.T), strict=True):
            room[:len(matrix)] = matrix
            table[place.row, part] = room.data_ptr()
        self._matrices.setdefault(place, {})[part] = matrices
        return sum(room.nbytes for room in matrices)

    def clear(self, place: Place) -> None:
        if self._matrices.pop(place, None) is not None:
            for table in self._tables:
                table[place.row] = 0

    def add(self, x: Tensor, y: Tensor) -> None:
        work = self._bearers.work
        if work is not None and (work.places is None or any(place in self._matrices for place in work.places)):
            self._add(work, x, y)

    def _add(self, work: Work, x: Tensor, y: Tensor) -> None:
        downs, ups = self._tables
        num_splits, num_parts, num_entries = -(-self._num_inputs // SPLIT), len(self._parts), len(work.entries)
        narrow = torch.empty(num_splits, num_parts, work.room, dtype=torch.float32, device=self._device)
        constants = {"PARTS": num_parts, "ROWS": ROWS, "RANKS": RANKS, "ENTRY": ENTRY}
        told = work.entries, work.number, work.rows
        shrink[turns(num_entries, num_parts * num_splits), num_parts, num_splits](
            x, self._like, downs, *told, narrow, x.stride(0), self._num_inputs, work.room, SPLIT=SPLIT, PIECE=PIECE,
            **constants)
        expand[turns(num_entries, len(self._blocks)), len(self._blocks)](
            narrow, self._like, ups, *told, self._blocks, y, y.stride(0), work.room, num_splits, BLOCK=BLOCK,
            EVEN=self._even, **constants)

    def _compile(self) -> None:
        """While the first adapter is loaded, and in no step: nobody's rows are computed. Some products are not rounded
        yet when something is added to them."""
        entries, rows, number = sent([[0] * ENTRY, [0], [0]], self._device)
        work = Work(entries.view(1, ENTRY), rows, number, LEAST_SIZE, None)
        with at(self._device):
            for dtype in (self._dtype, torch.float32):
                self._add(work, self._zeros(1, self._num_inputs),
                          self._zeros(1, self._parts[-1].columns.stop).to(dtype))
        self._is_compiled = True

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)


def turns(entries: int, others: int) -> int:
    """How many programs share the entries, where each goes with so many others. Most entries of a step that was
    captured are nobody's, and a program that finds nothing to do takes time as well."""
    return min(entries, max(1, PROGRAMS // others))
