"""The matrices of all adapters at one product, multiplied by Triton kernels: two launches for a shelf, whoever hangs
there. The kernels are in `adapter_kernels.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shard.adapters.bearers import ROWS, Bearers, Work
from shard.adapters.racks import WIDTH, Place, Shelf
from shard.device import sent
from shard.layers.adapter_kernels import expand, shrink
from shard.layers.portions import Part

FEWEST = 16  # ranks that a product is computed with
SPLIT = 1024  # inputs that one program takes
PIECE = 64  # of them at once
BLOCK = 128  # outputs of one program


class Slab(NamedTuple):
    """Of all parts, of the adapters on a shelf; zeros where none hangs or its rank is smaller."""

    down: Tensor  # [WIDTH, parts, size, in]
    up: Tensor  # [WIDTH, size, out], the outputs of all parts side by side


class Slabs:
    def __init__(self, bearers: Bearers, parts: Sequence[Part], dtype: torch.dtype, device: torch.device) -> None:
        self._bearers = bearers
        self._parts = parts
        self._num_inputs = len(parts[0].portions[0].inputs)
        self._num_outputs = parts[-1].columns.stop
        self._dtype, self._device = dtype, device
        self._slabs: dict[Shelf, Slab] = {}
        blocks = [number for part, columns in enumerate(part.columns for part in parts)
                  for first in columns[::BLOCK] for number in (part, first, columns.stop)]
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
        for work in self._bearers.works:
            if (slab := self._slabs.get(work.shelf)) is not None:
                self._add(slab, work, x, y)

    def _add(self, slab: Slab, work: Work, x: Tensor, y: Tensor) -> None:
        num_splits, num_held, size = -(-self._num_inputs // SPLIT), len(work.rows), work.shelf.size
        narrow = torch.empty(num_splits, len(self._parts), num_held, size, dtype=torch.float32, device=self._device)
        constants = {"PARTS": len(self._parts), "SIZE": size, "SIZE_PAD": max(FEWEST, size), "ROWS": ROWS}
        shrink[len(work.entries), len(self._parts), num_splits](
            x, slab.down, work.entries, work.rows, narrow, x.stride(0), self._num_inputs, num_held,
            SPLIT=SPLIT, PIECE=PIECE, **constants)
        expand[len(work.entries), len(self._blocks)](
            narrow, slab.up, work.entries, work.rows, self._blocks, y, y.stride(0), self._num_outputs, num_held,
            num_splits, BLOCK=BLOCK, **constants)

    def _slab(self, shelf: Shelf) -> Slab:
        """A new one is computed with at once, by nobody's rows: so kernels are compiled while an adapter is loaded, and
        in no step."""
        if (slab := self._slabs.get(shelf)) is None:
            slab = Slab(self._zeros(WIDTH, len(self._parts), shelf.size, self._num_inputs),
                        self._zeros(WIDTH, shelf.size, self._num_outputs))
            entries, rows = sent([[0, 0, 0], [0]], self._device)
            self._add(slab, Work(shelf, entries.view(1, 3), rows), self._zeros(1, self._num_inputs),
                      self._zeros(1, self._num_outputs))
            self._slabs[shelf] = slab
        return slab

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)
