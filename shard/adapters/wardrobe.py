"""Adapters that are loaded: each is read and checked as a whole, and only then there for rows to go by.

Knows nothing of steps, nor of who wants an adapter.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from shard.adapters.tensors import AdapterTensors, opened_adapter
from shard.errors import Refused
from shard.layers.adapted import Addition, Change, Portion, Replacement, Site, Sites, addition
from shard.layers.linear import make_linear


class Wardrobe:
    def __init__(self, sites: Sites, dtype: torch.dtype, device: torch.device) -> None:
        """For the products of a model that computes in `dtype`."""
        self._sites = sites
        self._dtype, self._device = dtype, device

    def load(self, number: int, folder: Path) -> int:
        """The bytes that it takes. From any thread. Raises Refused, and then nothing has changed."""
        try:
            with opened_adapter(folder) as tensors:
                changes = [(site, change) for site, change in self._read(tensors) if change is not None]
                tensors.check_claimed()
        except ValueError as error:
            raise Refused(str(error)) from None
        for site, change in changes:
            site.put(number, change)
        return sum(change.num_bytes for _, change in changes)

    def unload(self, number: int) -> None:
        """From any thread, when no step uses it any more."""
        for site in self._sites.all:
            site.remove(number)

    def _read(self, tensors: AdapterTensors) -> Iterator[tuple[Site, Change | None]]:
        for site in self._sites.linears:
            yield site, self._addition(site.portions, tensors)
        for site in self._sites.heads:
            yield site, self._other_head(site.portions[0], tensors) or self._addition(site.portions, tensors)
        for site in self._sites.embeddings:
            yield site, self._embedding(site.portions[0], tensors)

    def _addition(self, portions: Sequence[Portion], tensors: AdapterTensors) -> Addition | None:
        """For products side by side. Their first matrices stand one below the other, and what is multiplied with that
        makes for each product its own outputs only:

            | up of q |    0    |    0    |       | down of q |
            |    0    | up of k |    0    |   x   | down of k |
            |    0    |    0    | up of v |       | down of v |
        """
        found = {portion.module: tensors.matrices(portion.module, portion.shape) for portion in portions}
        matrices = {module: both for module, both in found.items() if both is not None}
        if not matrices:
            return None
        inputs = portions[0].inputs
        down = torch.cat([both.down[:, inputs.start:inputs.stop] for both in matrices.values()])
        columns = dict(zip(matrices, spans(len(both.down) for both in matrices.values()), strict=True))
        up = torch.zeros(sum(len(portion.outputs) for portion in portions), len(down))
        for portion, rows in zip(portions, spans(len(portion.outputs) for portion in portions), strict=True):
            if portion.module in matrices:
                held = matrices[portion.module].up[portion.outputs.start:portion.outputs.stop]
                mine = columns[portion.module]
                up[rows.start:rows.start + len(held), mine.start:mine.stop] = held
        return addition(self._placed(down), self._placed(up))

    def _other_head(self, portion: Portion, tensors: AdapterTensors) -> Replacement | None:
        saved = tensors.whole(portion.module, portion.shape)
        if saved is None:
            return None
        held = saved[portion.outputs.start:portion.outputs.stop]
        weight = self._placed(functional.pad(held, (0, 0, 0, len(portion.outputs) - len(held))))
        return Replacement(make_linear(weight), weight.nbytes)

    def _embedding(self, portion: Portion, tensors: AdapterTensors) -> Change | None:
        """Its rows are looked up, and so are those of an addition's first matrix."""
        saved = tensors.whole(portion.module, portion.shape[::-1])
        if saved is not None:
            weight = self._placed(saved)
            return Replacement(partial(weight.index_select, 0), weight.nbytes)
        both = tensors.matrices(portion.module, portion.shape)
        if both is None:
            return None
        rows, up = self._placed(both.down.mT), self._placed(both.up)
        return Addition(partial(rows.index_select, 0), make_linear(up), rows.nbytes + up.nbytes)

    def _placed(self, weight: Tensor) -> Tensor:
        return weight.to(self._device, self._dtype).contiguous()


def spans(lengths: Iterable[int]) -> list[range]:
    """One behind the other."""
    return [range(first, last) for first, last in pairwise(accumulate(lengths, initial=0))]
