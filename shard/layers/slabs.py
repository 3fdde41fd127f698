"""The matrices of all adapters at one product, multiplied by Triton kernels: two launches, whoever hangs wherever. The
kernels are in `adapter_kernels.py`.
"""

from collections.abc import Sequence
from math import gcd
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.bearers import Bearers
from shard.adapters.racks import KINDS, LEAST_SIZE, MOST_SIZE, WIDTH, Place, Shelf
from shard.adapters.work import ENTRY, ROWS, Work
from shard.device import at, sent
from shard.layers.adapter_kernels import expand, shrink
from shard.layers.portions import Part

RANKS = 16  # that a product is computed with at once
SPLIT = 1024  # inputs that one program takes
PIECE = 64  # of them at once
BLOCK = 128  # outputs of one program
EVEN = 16  # of which the first and the end are multiples, as a rule: then several are read at once
MOST_SHELVES = 4096  # of all sizes


class Slab(NamedTuple):
    """Of all parts, of the adapters on a shelf; zeros where none hangs or its rank is smaller."""

    down: Tensor  # [WIDTH, parts, size, in]
    up: Tensor  # [WIDTH, size, out], the outputs of all parts side by side


class Slabs:
    steady = True

    def __init__(self, bearers: Bearers, parts: Sequence[Part], dtype: torch.dtype, device: torch.device) -> None:
        self._bearers = bearers
        self._parts = parts
        self._num_inputs = len(parts[0].portions[0].inputs)
        self._num_outputs = parts[-1].columns.stop
        self._dtype, self._device = dtype, device
        self._slabs: dict[Shelf, Slab] = {}
        self._like = self._zeros(1)
        self._launching = Lock()  # both kernels find the same tables, though adapters are loaded meanwhile
        # Where they are, by the row of their shelf: of what makes rows narrow, and of what makes them wide.
        self._tables = torch.zeros(2, MOST_SHELVES, dtype=torch.int64, device=device).unbind()
        blocks = [number for part, columns in enumerate(part.columns for part in parts)
                  for first in columns[::BLOCK] for number in (part, first, columns.stop)]
        self._even = gcd(EVEN, *blocks[1::3], *blocks[2::3])
        self._blocks = sent([blocks], device)[0].view(-1, 3)

    def put(self, place: Place, part: int, down: Tensor, up: Tensor) -> int:
        slab, columns = self._slab(place.shelf), self._parts[part].columns
        narrow, wide = slab.down[place.slot, part], slab.up[place.slot, :, columns.start:columns.stop]
        for room, matrix in ((narrow, down), (wide, up.T)):
            room.zero_()
            room[:matrix.shape[0]] = matrix
        return narrow.nbytes + wide.nbytes

    def clear(self, place: Place) -> None:
        if (slab := self._slabs.get(place.shelf)) is not None:
            slab.down[place.slot].zero_()

    def add(self, x: Tensor, y: Tensor) -> None:
        work = self._bearers.work
        if work is not None and (work.shelves is None or any(shelf in self._slabs for shelf in work.shelves)):
            self._add(work, x, y)

    def _add(self, work: Work, x: Tensor, y: Tensor) -> None:
        downs, ups = self._tables
        num_splits, num_parts, num_programs = -(-self._num_inputs // SPLIT), len(self._parts), len(work.entries)
        narrow = torch.empty(num_splits, num_parts, work.room, dtype=torch.float32, device=self._device)
        constants = {"PARTS": num_parts, "ROWS": ROWS, "RANKS": RANKS, "ENTRY": ENTRY}
        with self._launching:
            shrink[num_programs, num_parts, num_splits](
                x, self._like, downs, work.entries, work.rows, narrow, x.stride(0), self._num_inputs, work.room,
                SPLIT=SPLIT, PIECE=PIECE, **constants)
            expand[num_programs, len(self._blocks)](
                narrow, self._like, ups, work.entries, work.rows, self._blocks, y, y.stride(0), self._num_outputs,
                work.room, num_splits, BLOCK=BLOCK, EVEN=self._even, **constants)

    def _slab(self, shelf: Shelf) -> Slab:
        if (slab := self._slabs.get(shelf)) is None:
            if shelf.size > MOST_SIZE or shelf.row >= MOST_SHELVES:
                raise RuntimeError(f"of about one rank {MOST_SHELVES // KINDS * WIDTH} adapters can be there at once, "
                                   f"and of none above {MOST_SIZE}")
            if not self._slabs:
                self._compile()
            slab = Slab(self._zeros(WIDTH, len(self._parts), shelf.size, self._num_inputs),
                        self._zeros(WIDTH, shelf.size, self._num_outputs))
            with self._launching:
                for table, matrices in zip(self._tables, slab, strict=True):
                    table[shelf.row] = matrices.data_ptr()
            self._slabs[shelf] = slab
        return slab

    def _compile(self) -> None:
        """While the first adapter is loaded, and in no step: nobody's rows are computed. Some products are not rounded
        yet when something is added to them."""
        entries, rows = sent([[0] * ENTRY, [0]], self._device)
        with at(self._device):
            for dtype in (self._dtype, torch.float32):
                self._add(Work(entries.view(1, ENTRY), rows, LEAST_SIZE, None), self._zeros(1, self._num_inputs),
                          self._zeros(1, self._num_outputs).to(dtype))

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)
