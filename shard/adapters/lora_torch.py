"""LoRA matrices of all adapters for one linear, multiplied by torch.

Matrices of one shelf share a tensor, and rows are multiplied in tiles of one size, so that a row's bits do not depend
on other rows.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shard.adapters.routing import TILE, Bearers, Tiles
from shard.adapters.slots import WIDTH, Place, Shelf
from shard.adapters.weight_slices import Part


class Stack(NamedTuple):
    """Matrices of one part for the adapters of one shelf; zeros beyond an adapter's rank.

    In free slots, and in those of adapters that do not change the part, `down` is zero.
    """

    down: Tensor  # [WIDTH, size, in]
    up: Tensor  # [WIDTH, size, out], transposed: few rows are multiplied up to twice as fast


class Stacks:
    steady = False

    def __init__(self, bearers: Bearers, parts: Sequence[Part], dtype: torch.dtype, device: torch.device) -> None:
        self._bearers = bearers
        self._parts = parts
        self._dtype, self._device = dtype, device
        self._stacks: dict[tuple[Shelf, int], Stack] = {}

    def put(self, place: Place, part: int, down: Tensor, up: Tensor) -> int:
        stack = self._stack(place.shelf, part)
        for room, matrix in ((stack.down[place.slot], down), (stack.up[place.slot], up.T)):
            room.zero_()
            room[:matrix.shape[0], :matrix.shape[1]] = matrix
        return stack.down[0].nbytes + stack.up[0].nbytes

    def clear(self, place: Place) -> None:
        for (shelf, _), stack in self._stacks.items():
            if shelf == place.shelf:
                stack.down[place.slot].zero_()

    def add(self, x: Tensor, y: Tensor) -> None:
        for tiles in self._bearers.tiles:
            self._add(tiles, x, y)

    def _add(self, tiles: Tiles, x: Tensor, y: Tensor) -> None:
        stacks = [(part, stack) for number, part in enumerate(self._parts)
                  if (stack := self._stacks.get((tiles.shelf, number))) is not None]
        if not stacks:
            return
        rows = picked(x, tiles.rows).to(self._dtype).reshape(-1, TILE, x.shape[1])
        for part, stack in stacks:
            narrow = multiplied(rows, stack.down.mT, tiles.slots)
            added = picked(multiplied(narrow, stack.up, tiles.slots).flatten(0, 1), tiles.held).to(y.dtype)
            columns = y[:, part.columns.start:part.columns.stop]
            if tiles.targets is None:
                columns.add_(added)
            else:
                columns.index_add_(0, tiles.targets, added)

    def _stack(self, shelf: Shelf, part: int) -> Stack:
        if (shelf, part) not in self._stacks:
            num_inputs, num_outputs = len(self._parts[part].portions[0].inputs), len(self._parts[part].columns)
            self._stacks[shelf, part] = Stack(*(
                zeros(shape, self._dtype, self._device)
                for shape in ((WIDTH, shelf.size, num_inputs), (WIDTH, shelf.size, num_outputs))))
        return self._stacks[shelf, part]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros. On a CPU, memory is not used before it is written, whereas `torch.zeros` writes all of it."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def picked(rows: Tensor, places: Tensor | None) -> Tensor:
    return rows if places is None else rows.index_select(0, places)


def multiplied(tiles: Tensor, matrices: Tensor, slots: range) -> Tensor:
    """Multiply `tiles: [tiles, TILE, in]` with `matrices: [WIDTH, in, out]`: one slot per tile, or one for all."""
    mine = matrices[slots.start:slots.stop]
    return torch.bmm(tiles, mine if len(slots) == len(tiles) else mine.expand(len(tiles), -1, -1))
