"""Startup check that an adapter's update of a row has the same bits for any composition of the batch.

Only the shapes of the model's linears matter, so the check multiplies random matrices of a few ranks.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from shard.adapters.lora_linear import Site
from shard.adapters.routing import Bearers, Run
from shard.adapters.slots import Racks
from shard.adapters.weight_slices import Portion

RANKS = (4, 16, 64)
NUM_ADAPTERS = 3
COMPANIES = (  # batches whose first row, which has adapter 1, is compared
    [Run(1, 2)], [Run(1, 17)], [Run(1, 300)], [Run(1, 1), Run(2, 1), Run(3, 1)], [Run(1, 3), Run(0, 5), Run(3, 9)],
)


@torch.inference_mode()
def verdict(sites: Iterable[Site], dtype: torch.dtype, device: torch.device) -> str:
    """Return a description of the first difference, or an empty string. `dtype` is the sites' compute dtype."""
    for num_inputs, num_outputs in sorted({shape for site in sites for shape in shapes(site)}):
        for rank in RANKS:
            if differs(rank, num_inputs, num_outputs, dtype, device):
                return (f"what an adapter of rank {rank} adds to a product of {num_inputs} inputs and {num_outputs} "
                        f"outputs has other bits in company than alone")
    return ""


def shapes(site: Site) -> Iterator[tuple[int, int]]:
    """Yield (inputs, outputs) of each part of the linear on this rank."""
    for part in site.parts:
        yield len(part.portions[0].inputs), len(part.columns)


def differs(rank: int, num_inputs: int, num_outputs: int, dtype: torch.dtype, device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(rank)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    racks = Racks()
    bearers = Bearers(device, racks)
    portion = Portion("", (num_outputs, num_inputs), range(num_outputs), range(num_inputs))
    site = Site(bearers, [portion], dtype, device)
    for number in range(1, NUM_ADAPTERS + 1):
        site.added.put(racks.take(number, rank), 0, drawn(rank, num_inputs), drawn(num_outputs, rank))
    x = drawn(max(sum(run.length for run in runs) for runs in COMPANIES), num_inputs)

    def first_row(runs: list[Run]) -> Tensor:
        num_rows = sum(run.length for run in runs)
        with bearers.rows(runs):
            return site.changed(x[:num_rows], torch.zeros(num_rows, num_outputs, dtype=dtype, device=device))[0]

    alone = first_row([Run(1, 1)])
    return not all(torch.equal(first_row(runs), alone) for runs in COMPANIES)
