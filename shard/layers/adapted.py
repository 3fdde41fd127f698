"""Products that adapters change: for the rows that go by one, something is added, or another weight is taken.

What is added is made by two narrow matrices. Those of adapters that hang side by side lie in one tensor, and rows are
multiplied in tiles of one size: a row's bits do not depend on the others. Knows nothing of files, sequences or steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shard.adapters.bearers import TILE, Bearers, Tiles
from shard.adapters.racks import WIDTH, Place, Shelf
from shard.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class Portion:
    """What a product of one rank makes of one of the checkpoint's."""

    module: str
    shape: tuple[int, int]  # [out, in], of all ranks together
    outputs: range  # that stand one behind the other here; those beyond the last are zeros
    inputs: range


@dataclass(frozen=True, slots=True)
class Part:
    """All that a product makes of one of the checkpoint's, side by side."""

    portions: tuple[Portion, ...]
    columns: range  # of what the product makes

    @property
    def module(self) -> str:
        return self.portions[0].module

    @property
    def shape(self) -> tuple[int, int]:
        return self.portions[0].shape

    def mine(self, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's of an adapter's matrices."""
        inputs, outputs = self.portions[0].inputs, torch.zeros(len(self.columns), up.shape[1])
        first = 0
        for portion in self.portions:
            held = up[portion.outputs.start:portion.outputs.stop]
            outputs[first:first + len(held)] = held
            first += len(portion.outputs)
        return down[:, inputs.start:inputs.stop], outputs


class Stack(NamedTuple):
    """The matrices of all adapters on a shelf, zeros where none hangs or its rank is smaller."""

    down: Tensor  # [WIDTH, size, in]
    up: Tensor  # [WIDTH, size, out], turned: so a few rows are multiplied up to twice as fast


class Site:
    """A linear of a model, and what every adapter that is loaded adds to it, or takes in its place."""

    def __init__(self, bearers: Bearers, portions: Sequence[Portion], dtype: torch.dtype, device: torch.device) -> None:
        self.parts = parts_of(portions)
        self._bearers = bearers
        self._dtype, self._device = dtype, device
        self._stacks: dict[tuple[Shelf, int], Stack] = {}
        self._others: dict[int, Linear] = {}

    def put(self, place: Place, part: int, down: Tensor, up: Tensor) -> int:
        """`down: [rank, in]`, `up: [out, rank]`. No row goes by it yet. The bytes that it takes."""
        stack = self._stack(place.shelf, part)
        for room, matrix in ((stack.down[place.slot], down), (stack.up[place.slot], up.T)):
            room.zero_()
            room[:matrix.shape[0], :matrix.shape[1]] = matrix
        return stack.down[0].nbytes + stack.up[0].nbytes

    def clear(self, place: Place) -> None:
        """No row goes by it any more."""
        for (shelf, _), stack in self._stacks.items():
            if shelf == place.shelf:
                stack.down[place.slot].zero_()

    def replace(self, adapter: int, linear: Linear) -> None:
        """Rows of this adapter take it in the place of the model's."""
        self._others[adapter] = linear

    def restore(self, adapter: int) -> None:
        self._others.pop(adapter, None)

    def changed(self, x: Tensor, y: Tensor) -> Tensor:
        """`y`, which the product made of `x`, changed in place."""
        for tiles in self._bearers.tiles:
            self._add(tiles, x, y)
        if self._others:
            for band in self._bearers.bands:
                if (other := self._others.get(band.adapter)) is not None:
                    y.index_copy_(0, band.rows, other(x.index_select(0, band.rows)))
        return y

    def _add(self, tiles: Tiles, x: Tensor, y: Tensor) -> None:
        stacks = [(part, stack) for number, part in enumerate(self.parts)
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
            num_inputs, num_outputs = len(self.parts[part].portions[0].inputs), len(self.parts[part].columns)
            self._stacks[shelf, part] = Stack(*(
                zeros(shape, self._dtype, self._device)
                for shape in ((WIDTH, shelf.size, num_inputs), (WIDTH, shelf.size, num_outputs))))
        return self._stacks[shelf, part]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU such that memory to which nobody has written is not taken yet; torch's own are all written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def parts_of(portions: Sequence[Portion]) -> list[Part]:
    found: list[Part] = []
    first = 0
    for _, group in groupby(portions, key=lambda portion: portion.module):
        same = tuple(group)
        last = first + sum(len(portion.outputs) for portion in same)
        found.append(Part(same, range(first, last)))
        first = last
    return found


def picked(rows: Tensor, places: Tensor | None) -> Tensor:
    return rows if places is None else rows.index_select(0, places)


def multiplied(tiles: Tensor, matrices: Tensor, slots: range) -> Tensor:
    """`tiles: [tiles, TILE, in]` with `matrices: [WIDTH, in, out]`, each with its own or all with the same."""
    mine = matrices[slots.start:slots.stop]
    return torch.bmm(tiles, mine if len(slots) == len(tiles) else mine.expand(len(tiles), -1, -1))


class AdaptedLinear:
    def __init__(self, linear: Linear, site: Site) -> None:
        self._linear = linear
        self._site = site

    def __call__(self, x: Tensor) -> Tensor:
        return self._site.changed(x, self._linear(x))
