"""Registry of loaded adapters. An adapter is read and validated completely before any row can use it."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shard.adapters import exactness
from shard.adapters.files import AdapterTensors, opened_adapter
from shard.adapters.lora_linear import Site
from shard.adapters.routing import Bearers
from shard.adapters.slots import Racks
from shard.adapters.targets import EmbeddingSite, Sites
from shard.errors import Refused
from shard.ops.linear import make_linear


class Narrow(NamedTuple):
    """Low-rank update of one part of a linear."""

    site: Site
    part: int
    down: Tensor  # [rank, in]
    up: Tensor  # [out, rank]


class Other(NamedTuple):
    """Full replacement of a head's weight."""

    site: Site
    weight: Tensor  # [out, in]


class Wardrobe:
    """Registry of loaded adapters. Pass `sites` to the model's loader and `bearers` to its runner."""

    def __init__(self, dtype: torch.dtype, device: torch.device, *, adaptable: bool) -> None:
        """`dtype` is the model's compute dtype. If not `adaptable`, the model takes no adapters."""
        self._racks = Racks()
        self._dtype, self._device = dtype, device
        self._computing = torch.float32 if device.type == "cpu" else dtype  # compute dtype of the updates
        self.bearers = Bearers(device, self._racks)
        self.sites = Sites(self.bearers if adaptable else None, self._computing, device)

    @property
    def is_open(self) -> bool:
        """Whether the loaded model takes adapters. Valid once the model has been read."""
        return bool(self.sites.linears)

    @property
    def steady(self) -> Bearers | None:
        """`bearers` if the kernels launched do not depend on which adapters the rows have, else None."""
        is_steady = self.is_open and all(site.added.steady for site in self.sites.linears + self.sites.heads)
        return self.bearers if is_steady else None

    def verdict(self) -> str:
        """Return why an adapter's update depends on the other rows of a batch, or an empty string if it does not."""
        return exactness.verdict(self.sites.linears + self.sites.heads, self._computing, self._device)

    def load(self, number: int, folder: Path) -> int:
        """Load the adapter and return its size in bytes. Raises Refused, and then nothing has changed.

        Called by one thread at a time.
        """
        try:
            with opened_adapter(folder) as tensors:
                others = [other for site in self.sites.heads if (other := other_head(site, tensors)) is not None]
                narrow = [found for site in self.sites.linears + self.sites.heads
                          for found in narrow_parts(site, tensors)]
                embeddings = [(site, tensors.whole(site.module, site.shape),
                               tensors.matrices(site.module, site.shape[::-1])) for site in self.sites.embeddings]
                tensors.check_claimed()
        except ValueError as error:
            raise Refused(str(error)) from None
        try:
            num_bytes = self._hang(number, narrow) + sum(self._replace(number, other) for other in others)
            for embedding, weight, matrices in embeddings:
                if weight is not None:
                    num_bytes += embedding.replace(number, weight)
                if matrices is not None:
                    num_bytes += embedding.add(number, *matrices)
            if others or any(part is not None for _, *parts in embeddings for part in parts):
                self.bearers.others.add(number)
        except Exception as error:
            self.unload(number)
            if not isinstance(error, MemoryError | RuntimeError):  # torch raises RuntimeError when out of memory
                raise
            raise Refused(f"there is no room for the adapter in {folder}: {str(error).splitlines()[0]}") from None
        return num_bytes

    def unload(self, number: int) -> None:
        """Unload the adapter, which no step may use any more. Not called at the same time as `load`."""
        if (place := self._racks.find(number)) is not None:
            self._racks.free(number)
            for site in self.sites.linears + self.sites.heads:
                site.added.clear(place)
        self.bearers.others.discard(number)
        changed: list[Site | EmbeddingSite] = [*self.sites.heads, *self.sites.embeddings]
        for head_or_embedding in changed:
            head_or_embedding.restore(number)

    def _hang(self, number: int, narrow: list[Narrow]) -> int:
        if not narrow:
            return 0
        place = self._racks.take(number, max(len(one.down) for one in narrow))
        return sum(site.added.put(place, part, down, up) for site, part, down, up in narrow)

    def _replace(self, number: int, other: Other) -> int:
        weight = other.weight.to(self._device, self._dtype)
        other.site.replace(number, make_linear(weight))
        return weight.nbytes


def narrow_parts(site: Site, tensors: AdapterTensors) -> list[Narrow]:
    found = [(number, part, tensors.matrices(part.module, part.shape)) for number, part in enumerate(site.parts)]
    return [Narrow(site, number, *part.mine(*matrices)) for number, part, matrices in found if matrices is not None]


def other_head(site: Site, tensors: AdapterTensors) -> Other | None:
    """Return the adapter's head for this rank's part of the vocabulary, padded with zeros; None if it has none."""
    part = site.parts[0]
    saved = tensors.whole(part.module, part.shape)
    if saved is None:
        return None
    outputs = part.portions[0].outputs
    held = saved[outputs.start:outputs.stop]
    return Other(site, functional.pad(held, (0, 0, 0, len(outputs) - len(held))))
