"""The gate's look at adapters: whether narrow products give a row the same bits alone and in any company.

Only the shapes of a model's products matter, so random matrices of some ranks are multiplied. Knows nothing of models.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from shard.layers.adapted import Site, addition

RANKS = (4, 16, 64)
COMPANIES = (2, 17, 300)


@torch.inference_mode()
def verdict(sites: Iterable[Site], dtype: torch.dtype, device: torch.device) -> str:
    """What differs, or nothing."""
    for num_inputs, num_outputs in sorted({shape_of(site) for site in sites}):
        for rank in RANKS:
            if differs(rank, num_inputs, num_outputs, dtype, device):
                return (f"what an adapter of rank {rank} adds to a product of {num_inputs} inputs and {num_outputs} "
                        f"outputs has other bits in company than alone")
    return ""


def shape_of(site: Site) -> tuple[int, int]:
    """Of the product on this rank."""
    return len(site.portions[0].inputs), sum(len(portion.outputs) for portion in site.portions)


def differs(rank: int, num_inputs: int, num_outputs: int, dtype: torch.dtype, device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(rank)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    added, x = addition(drawn(rank, num_inputs), drawn(num_outputs, rank)), drawn(max(COMPANIES), num_inputs)
    alone = torch.zeros(1, num_outputs, dtype=dtype, device=device)
    added.apply(x[:1], alone, None)
    for size in COMPANIES:
        together = torch.zeros(size, num_outputs, dtype=dtype, device=device)
        added.apply(x[:size], together, None)
        if not torch.equal(together[:1], alone):
            return True
    return False
