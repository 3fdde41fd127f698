"""Products that adapters change: for the rows that go by one, something is added, or another weight is taken.

What is added is made by two narrow matrices. Knows nothing of files, sequences or steps.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shard.adapters.bearers import Bearers
from shard.adapters.racks import Place
from shard.layers.kernels import kernels
from shard.layers.linear import Linear
from shard.layers.portions import Portion, parts_of
from shard.layers.stacks import Stacks


class Added(Protocol):
    """The matrices of all adapters at one product, `down: [rank, in]` and `up: [out, rank]` for each of its parts."""

    steady: bool  # whether what is launched does not depend on which adapters rows go by

    def put(self, place: Place, part: int, down: Tensor, up: Tensor) -> int:
        """No row goes by it yet. The bytes that it takes."""

    def clear(self, place: Place) -> None:
        """No row goes by it any more."""

    def add(self, x: Tensor, y: Tensor) -> None:
        """To `y`, which the product made of `x`."""


class Site:
    """A linear of a model, and what every adapter that is loaded adds to it, or takes in its place."""

    def __init__(self, bearers: Bearers, portions: Sequence[Portion], dtype: torch.dtype, device: torch.device) -> None:
        self.parts = parts_of(portions)
        by_kernels = kernels(device, "slabs")
        self.added: Added = (Stacks if by_kernels is None else by_kernels.Slabs)(bearers, self.parts, dtype, device)
        self._bearers = bearers
        self._others: dict[int, Linear] = {}

    def replace(self, adapter: int, linear: Linear) -> None:
        """Rows of this adapter take it in the place of the model's."""
        self._others[adapter] = linear

    def restore(self, adapter: int) -> None:
        self._others.pop(adapter, None)

    def changed(self, x: Tensor, y: Tensor) -> Tensor:
        """`y`, which the product made of `x`, changed in place."""
        self.added.add(x, y)
        if self._others:
            for band in self._bearers.bands:
                if (other := self._others.get(band.adapter)) is not None:
                    y.index_copy_(0, band.rows, other(x.index_select(0, band.rows)))
        return y


class AdaptedLinear:
    def __init__(self, linear: Linear, site: Site) -> None:
        self._linear = linear
        self._site = site

    def __call__(self, x: Tensor) -> Tensor:
        return self._site.changed(x, self._linear(x))
