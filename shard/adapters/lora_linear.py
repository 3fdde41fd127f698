"""Linears with adapters: a row's adapter adds a low-rank update or replaces the whole weight."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shard.adapters.lora_torch import Stacks
from shard.adapters.routing import Bearers
from shard.adapters.slots import Place
from shard.adapters.weight_slices import Portion, parts_of
from shard.ops.linear import Linear
from shard.ops.triton_support import kernels


class Added(Protocol):
    """LoRA matrices of all adapters for one linear: `down: [rank, in]` and `up: [out, rank]` for each of its parts."""

    steady: bool  # whether the kernels launched do not depend on which adapters the rows have

    def put(self, place: Place, part: int, down: Tensor, up: Tensor) -> int:
        """Store an adapter's matrices before any row uses them. Return their size in bytes."""

    def clear(self, place: Place) -> None:
        """Remove the matrices of a slot that no row uses any more."""

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add the updates of the current rows' adapters to `y`, the linear's output for `x`."""


class Site:
    """Updates and replacements of one linear by all loaded adapters."""

    def __init__(self, bearers: Bearers, portions: Sequence[Portion], dtype: torch.dtype, device: torch.device) -> None:
        self.parts = parts_of(portions)
        by_kernels = kernels(device, "shard.adapters.lora_triton")
        self.added: Added = (Stacks if by_kernels is None else by_kernels.Slabs)(bearers, self.parts, dtype, device)
        self._bearers = bearers
        self._others: dict[int, Linear] = {}

    def replace(self, adapter: int, linear: Linear) -> None:
        """Use `linear` instead of the model's for rows of this adapter."""
        self._others[adapter] = linear

    def restore(self, adapter: int) -> None:
        self._others.pop(adapter, None)

    def changed(self, x: Tensor, y: Tensor) -> Tensor:
        """Apply the rows' adapters to `y`, the linear's output for `x`, in place and return it."""
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
