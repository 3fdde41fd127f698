"""Adapters that are loaded: each is read and checked as a whole, and only then hung where rows can go by it.

Knows nothing of steps, nor of who wants an adapter.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shard.adapters.racks import Racks
from shard.adapters.tensors import AdapterTensors, opened_adapter
from shard.errors import Refused
from shard.layers.adapted import Part, Site
from shard.layers.linear import make_linear
from shard.layers.sites import EmbeddingSite, Sites


class Narrow(NamedTuple):
    """What is added to a part of a linear."""

    site: Site
    part: int
    down: Tensor  # [rank, in]
    up: Tensor  # [out, rank]


class Other(NamedTuple):
    """What stands for a head."""

    site: Site
    weight: Tensor  # [out, in]


class Wardrobe:
    def __init__(self, sites: Sites, racks: Racks, dtype: torch.dtype, device: torch.device) -> None:
        """For a model that computes in `dtype`; what it is changed to is for the sites to know."""
        self._sites = sites
        self._racks = racks
        self._dtype, self._device = dtype, device

    def load(self, number: int, folder: Path) -> int:
        """The bytes that it takes. From one thread at a time. Raises Refused, and then nothing has changed."""
        try:
            with opened_adapter(folder) as tensors:
                others = [other for site in self._sites.heads if (other := other_head(site, tensors)) is not None]
                narrow = [found for site in self._sites.linears + self._sites.heads
                          for found in narrow_parts(site, tensors)]
                embeddings = [(site, tensors.whole(site.module, site.shape),
                               tensors.matrices(site.module, site.shape[::-1])) for site in self._sites.embeddings]
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
        except (MemoryError, RuntimeError) as error:  # which is what torch says when there is none
            self.unload(number)
            raise Refused(f"there is no memory for the adapter in {folder}: {str(error).splitlines()[0]}") from None
        return num_bytes

    def unload(self, number: int) -> None:
        """From the same threads, when no step uses it any more."""
        if (place := self._racks.find(number)) is not None:
            self._racks.free(number)
            for site in self._sites.linears + self._sites.heads:
                site.clear(place)
        changed: list[Site | EmbeddingSite] = [*self._sites.heads, *self._sites.embeddings]
        for head_or_embedding in changed:
            head_or_embedding.restore(number)

    def _hang(self, number: int, narrow: list[Narrow]) -> int:
        if not narrow:
            return 0
        place = self._racks.take(number, max(len(one.down) for one in narrow))
        return sum(site.put(place, part, down, up) for site, part, down, up in narrow)

    def _replace(self, number: int, other: Other) -> int:
        weight = other.weight.to(self._device, self._dtype)
        other.site.replace(number, make_linear(weight))
        return weight.nbytes


def narrow_parts(site: Site, tensors: AdapterTensors) -> list[Narrow]:
    found = [(number, part, tensors.matrices(part.module, part.shape)) for number, part in enumerate(site.parts)]
    return [Narrow(site, number, *part.mine(*matrices)) for number, part, matrices in found if matrices is not None]


def other_head(site: Site, tensors: AdapterTensors) -> Other | None:
    """Of this rank's part of the vocabulary, and zeros beyond its end."""
    part: Part = site.parts[0]
    saved = tensors.whole(part.module, part.shape)
    if saved is None:
        return None
    outputs = part.portions[0].outputs
    held = saved[outputs.start:outputs.stop]
    return Other(site, functional.pad(held, (0, 0, 0, len(outputs) - len(held))))
