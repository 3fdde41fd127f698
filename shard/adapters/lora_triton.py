"""LoRA matrices of all adapters for one linear, multiplied by the Triton kernels of `lora_kernels.py`.

Two launches per linear, for any number of adapters.
"""

from collections.abc import Sequence
from functools import cached_property
from math import gcd

import torch
from torch import Tensor

from shard.adapters.lora_kernels import expand, shrink
from shard.adapters.lora_work import ENTRY, ROWS, Work
from shard.adapters.routing import Bearers
from shard.adapters.slots import LEAST_SIZE, MOST_SIZE, Place
from shard.adapters.weight_slices import Part
from shard.host.device import at, sent

RANKS = 16  # LoRA ranks per tl.dot
SPLIT = 1024  # inputs per shrink program
PIECE = 64  # inputs per tl.dot
BLOCK = 128  # outputs per expand program
EVEN = 16  # usual divisor of column offsets and widths; lets the compiler vectorise loads
MOST_ADAPTERS = 1024  # loaded at once
PROGRAMS = 1024  # target number of programs in a launch whose number of entries is unknown


class Slabs:
    """Implementation of `Added` by Triton kernels, which read the matrices through tables of addresses."""

    steady = True

    def __init__(self, bearers: Bearers, parts: Sequence[Part], dtype: torch.dtype, device: torch.device) -> None:
        self._bearers = bearers
        self._parts = parts
        self._num_inputs = len(parts[0].portions[0].inputs)
        self._dtype, self._device = dtype, device
        self._matrices: dict[Place, dict[int, tuple[Tensor, Tensor]]] = {}  # by part
        self._like = self._zeros(1)
        blocks = [number for part, columns in enumerate(part.columns for part in parts)
                  for first in range(0, len(columns), BLOCK) for number in (part, columns.start, len(columns), first)]
        self._even = gcd(EVEN, *blocks[1::4], *blocks[2::4], *blocks[3::4])
        self._blocks = sent([blocks], device)[0].view(-1, 4)
        self._is_compiled = False

    @cached_property
    def _tables(self) -> tuple[Tensor, ...]:
        """Addresses of the matrices by table row of their slot and by part, for shrink and for expand.

        Allocated on first use: experts that no adapter changes need no tables.
        """
        with torch.inference_mode(mode=False):  # a step may be the first user, yet `put` must be able to write to them
            return torch.zeros(2, MOST_ADAPTERS, len(self._parts), dtype=torch.int64, device=self._device).unbind()

    def put(self, place: Place, part: int, down: Tensor, up: Tensor) -> int:
        if place.shelf.size > MOST_SIZE or place.row >= MOST_ADAPTERS:
            raise RuntimeError(
                f"{MOST_ADAPTERS} adapters can be on a GPU at once, and none of a rank above {MOST_SIZE}")
        if not self._is_compiled:
            self._compile()
        size, num_outputs = place.shelf.size, len(self._parts[part].columns)
        matrices = self._zeros(size, self._num_inputs), self._zeros(size, num_outputs)
        for room, matrix in zip(matrices, (down, up.T), strict=True):
            room[:len(matrix)] = matrix
        self._matrices.setdefault(place, {})[part] = matrices
        for table, room in zip(self._tables, matrices, strict=True):
            table[place.row, part] = room.data_ptr()
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
        num_splits, num_parts = -(-self._num_inputs // SPLIT), len(self._parts)
        narrow = torch.empty(num_splits, num_parts, work.room, dtype=torch.float32, device=self._device)
        constants = {"PARTS": num_parts, "ROWS": ROWS, "RANKS": RANKS, "ENTRY": ENTRY}
        told = work.entries, work.number, work.rows
        shrink[programs(work, num_parts * num_splits), num_parts, num_splits](
            x, self._like, downs, *told, narrow, x.stride(0), self._num_inputs, work.room, SPLIT=SPLIT, PIECE=PIECE,
            **constants)
        expand[programs(work, len(self._blocks)), len(self._blocks)](
            narrow, self._like, ups, *told, self._blocks, y, y.stride(0), work.room, num_splits, BLOCK=BLOCK,
            EVEN=self._even, **constants)

    def _compile(self) -> None:
        """Compile the kernels with an empty work list while the first adapter is loaded, not during a step.

        Some linears' outputs are still float32 when the update is added, so both types of `y` are compiled.
        """
        entries, rows, number = sent([[0] * ENTRY, [0], [0]], self._device)
        work = Work(entries.view(1, ENTRY), rows, number, LEAST_SIZE, None)
        with at(self._device):
            for dtype in (self._dtype, torch.float32):
                self._add(work, self._zeros(1, self._num_inputs),
                          self._zeros(1, self._parts[-1].columns.stop).to(dtype))
        self._is_compiled = True

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)


def programs(work: Work, others: int) -> int:
    """Return the number of programs that share the entries, if each is launched `others` times on the other axes.

    In a captured step most entries are unused, and a program without work takes time, too.
    """
    return len(work.entries) if work.places is not None else min(len(work.entries), -(-PROGRAMS // others))
