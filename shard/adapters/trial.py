"""The gate's look at adapters: whether what one adds to a row has the same bits alone and in any company.

Only the shapes of a model's products matter, so random matrices of some ranks are multiplied. Knows nothing of models.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from shard.adapters.bearers import Bearers, Run
from shard.adapters.racks import Racks
from shard.layers.adapted import Site
from shard.layers.portions import Portion

RANKS = (4, 16, 64)
NUM_ADAPTERS = 3
COMPANIES = (  # of the row that is looked at, which goes by the first adapter
    [Run(1, 2)], [Run(1, 17)], [Run(1, 300)], [Run(1, 1), Run(2, 1), Run(3, 1)], [Run(1, 3), Run(0, 5), Run(3, 9)],
)


@torch.inference_mode()
def verdict(sites: Iterable[Site], dtype: torch.dtype, device: torch.device) -> str:
    """What differs, or nothing. `dtype` is what the sites compute in."""
    for num_inputs, num_outputs in sorted({shape for site in sites for shape in shapes(site)}):
        for rank in RANKS:
            if differs(rank, num_inputs, num_outputs, dtype, device):
                return (f"what an adapter of rank {rank} adds to a product of {num_inputs} inputs and {num_outputs} "
                        f"outputs has other bits in company than alone")
    return ""


def shapes(site: Site) -> Iterator[tuple[int, int]]:
    """On this rank."""
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
