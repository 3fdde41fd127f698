"""Startup check that an adapter's update of a row has the same bits for any composition of the batch.

Only the shapes of the model's linears matter, so the check multiplies random matrices of a few ranks. It runs behind
the exactness gate: docs/exactness.md, "How it is checked".
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from shard.lora.fused_linear_parts import WeightSlice
from shard.lora.lora_linear import LinearLoraTarget
from shard.lora.routing import AdapterRouting, AdapterRowSpan
from shard.lora.slot_assignment import AdapterSlots

TESTED_RANKS = (4, 16, 64)
NUM_TESTED_ADAPTERS = 3
TESTED_BATCHES = (  # batches whose first row, which has adapter 1, is compared
    [AdapterRowSpan(1, 2)], [AdapterRowSpan(1, 17)], [AdapterRowSpan(1, 300)],
    [AdapterRowSpan(1, 1), AdapterRowSpan(2, 1), AdapterRowSpan(3, 1)],
    [AdapterRowSpan(1, 3), AdapterRowSpan(0, 5), AdapterRowSpan(3, 9)],)


@torch.inference_mode()
def find_batch_dependence(lora_targets: Iterable[LinearLoraTarget], dtype: torch.dtype, device: torch.device) -> str:
    """Return a description of the first difference, or an empty string. `dtype` is the targets' compute dtype."""
    for num_inputs, num_outputs in sorted({shape for site in lora_targets for shape in iter_part_shapes(site)}):
        for rank in TESTED_RANKS:
            if depends_on_batch(rank, num_inputs, num_outputs, dtype, device):
                return (f"what an adapter of rank {rank} adds to a product of {num_inputs} inputs and {num_outputs} "
                        f"outputs has other bits in company than alone")
    return ""


def iter_part_shapes(lora_target: LinearLoraTarget) -> Iterator[tuple[int, int]]:
    """Yield (inputs, outputs) of each part of the linear on this rank."""
    for part in lora_target.parts:
        yield len(part.weight_slices[0].inputs), len(part.output_columns)


def depends_on_batch(rank: int, num_inputs: int, num_outputs: int, dtype: torch.dtype, device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(rank)

    def random_tensor(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    adapter_slots = AdapterSlots()
    adapter_routing = AdapterRouting(device, adapter_slots)
    weight_slice = WeightSlice("", (num_outputs, num_inputs), range(num_outputs), range(num_inputs))
    lora_target = LinearLoraTarget(adapter_routing, [weight_slice], dtype, device)
    for number in range(1, NUM_TESTED_ADAPTERS + 1):
        lora_target.lora_weights.store_adapter(adapter_slots.assign(number, rank), 0, random_tensor(rank, num_inputs),
                                               random_tensor(num_outputs, rank))
    x = random_tensor(max(sum(run.length for run in runs) for runs in TESTED_BATCHES), num_inputs)

    def compute_first_row(runs: list[AdapterRowSpan]) -> Tensor:
        num_rows = sum(run.length for run in runs)
        with adapter_routing.route_rows(runs):
            return lora_target.apply_adapters(x[:num_rows],
                                              torch.zeros(num_rows, num_outputs, dtype=dtype, device=device))[0]

    alone = compute_first_row([AdapterRowSpan(1, 1)])
    return not all(torch.equal(compute_first_row(runs), alone) for runs in TESTED_BATCHES)
