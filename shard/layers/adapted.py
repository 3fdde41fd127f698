"""Products that adapters change: for the rows that go by one, something is added, or another weight is taken.

A row's bits do not depend on the others: the rows of an adapter are multiplied together, by products such that a row's
bits are its own, and what comes out is added to each by itself. Knows nothing of files, sequences or steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shard.adapters.bearers import Bearers
from shard.layers.linear import Linear, make_linear


@dataclass(frozen=True, slots=True)
class Portion:
    """What a product of one rank makes of one of the checkpoint's."""

    module: str
    shape: tuple[int, int]  # [out, in], of all ranks together
    outputs: range  # that stand one behind the other here; those beyond the last are zeros
    inputs: range


class Change(Protocol):
    """What one adapter does to one product."""

    num_bytes: int

    def apply(self, x: Tensor, y: Tensor, rows: Tensor | None) -> None:
        """To these rows of what the product made of `x`, or to all."""


class Addition:
    """The product of two narrow matrices; of an embedding the first is looked up."""

    def __init__(self, down: Linear, up: Linear, num_bytes: int) -> None:
        self._down, self._up = down, up
        self.num_bytes = num_bytes

    def apply(self, x: Tensor, y: Tensor, rows: Tensor | None) -> None:
        if rows is None:
            y.add_(self._added(x))
        else:
            y.index_add_(0, rows, self._added(x.index_select(0, rows)).to(y.dtype))

    def _added(self, x: Tensor) -> Tensor:
        if len(x) == 1:  # alone, a row may be computed in another way
            return self._added(torch.cat((x, x)))[:1]
        return self._up(self._down(x))


def addition(down: Tensor, up: Tensor) -> Addition:
    """`down: [rank, in]`, `up: [out, rank]`"""
    return Addition(make_linear(down), make_linear(up), down.nbytes + up.nbytes)


class Replacement:
    """Another weight in the place of the model's."""

    def __init__(self, product: Linear, num_bytes: int) -> None:
        self._product = product
        self.num_bytes = num_bytes

    def apply(self, x: Tensor, y: Tensor, rows: Tensor | None) -> None:
        if rows is None:
            y.copy_(self._product(x))
        else:
            y.index_copy_(0, rows, self._product(x.index_select(0, rows)))


class Site:
    """A product of a model, and what every adapter that is loaded does to it."""

    def __init__(self, bearers: Bearers, portions: Sequence[Portion]) -> None:
        self.portions = portions
        self._bearers = bearers
        self._changes: dict[int, Change] = {}

    def put(self, adapter: int, change: Change) -> None:
        """No row goes by it yet."""
        self._changes[adapter] = change

    def remove(self, adapter: int) -> None:
        """No row goes by it any more."""
        self._changes.pop(adapter, None)

    def changed(self, x: Tensor, y: Tensor) -> Tensor:
        """`y`, which the product made of `x`, changed in place."""
        for band in self._bearers.bands:
            change = self._changes.get(band.adapter)
            if change is not None:
                change.apply(x, y, band.rows)
        return y


class AdaptedLinear:
    def __init__(self, linear: Linear, site: Site) -> None:
        self._linear = linear
        self._site = site

    def __call__(self, x: Tensor) -> Tensor:
        return self._site.changed(x, self._linear(x))


class Sites:
    """The products of one rank's model that adapters may change."""

    def __init__(self, bearers: Bearers | None = None) -> None:
        """Without bearers there are none, and no product costs anything more."""
        self.bearers = bearers
        self.linears: list[Site] = []
        self.heads: list[Site] = []
        self.embeddings: list[Site] = []

    @property
    def are_open(self) -> bool:
        return self.bearers is not None

    @property
    def all(self) -> list[Site]:
        return self.linears + self.heads + self.embeddings

    def linear(self, linear: Linear, portions: Sequence[Portion]) -> Linear:
        return self._adapted(linear, portions, self.linears)

    def head(self, linear: Linear, portion: Portion) -> Linear:
        return self._adapted(linear, [portion], self.heads)

    def embedding(self, module: str, shape: tuple[int, int]) -> Site | None:
        """`shape: [vocabulary, width]`. The whole of it on every rank: rows are changed when they have been summed."""
        if self.bearers is None:
            return None
        site = Site(self.bearers, [Portion(module, shape[::-1], range(shape[1]), range(shape[0]))])
        self.embeddings.append(site)
        return site

    def _adapted(self, linear: Linear, portions: Sequence[Portion], kind: list[Site]) -> Linear:
        if self.bearers is None:
            return linear
        site = Site(self.bearers, portions)
        kind.append(site)
        return AdaptedLinear(linear, site)
