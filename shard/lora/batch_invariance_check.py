"""Startup check that an adapter's update of a row has the same bits for any composition of the batch.

Only the shapes of the model's linears matter, so the check multiplies random matrices of a few ranks. It runs behind
the exactness gate: docs/concepts/exactness.md, "How it is checked".
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from shard.lora.lora_linear import LoraLinear
from shard.lora.routing import AdapterRouting, AdapterRowSpan, AdapterSlots
from shard.quantization.quantization_format import MatrixSlice

TESTED_RANKS = (4, 16, 64)
NUM_TESTED_ADAPTERS = 3
TESTED_BATCHES = (  # batches whose first row, which has adapter 1, is compared
    [AdapterRowSpan(1, 2)], [AdapterRowSpan(1, 17)], [AdapterRowSpan(1, 300)],
    [AdapterRowSpan(1, 1), AdapterRowSpan(2, 1), AdapterRowSpan(3, 1)],
    [AdapterRowSpan(1, 3), AdapterRowSpan(0, 5), AdapterRowSpan(3, 9)],)


@torch.inference_mode()
def find_batch_dependence(lora_linears: Iterable[LoraLinear], dtype: torch.dtype, device: torch.device) -> str:
    """Return a description of the first difference, or an empty string. `dtype` is the linears' compute dtype."""
    # inputs and outputs of each part of a linear on this rank
    shapes = {(len(part.inputs), len(part.output_columns)) for linear in lora_linears for part in linear.parts}
    for num_inputs, num_outputs in sorted(shapes):
        for rank in TESTED_RANKS:
            if depends_on_batch(rank, num_inputs, num_outputs, dtype, device):
                return (f"what an adapter of rank {rank} adds to a product of {num_inputs} inputs and {num_outputs} "
                        f"outputs has other bits in company than alone")
    return ""


def depends_on_batch(rank: int, num_inputs: int, num_outputs: int, dtype: torch.dtype, device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(rank)

    def random_tensor(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    adapter_slots = AdapterSlots()
    adapter_routing = AdapterRouting(device, adapter_slots)
    matrix_slice = MatrixSlice("", (num_outputs, num_inputs), range(num_outputs), range(num_inputs))
    lora_linear = LoraLinear(lambda x: torch.zeros(len(x), num_outputs, dtype=dtype, device=device), adapter_routing,
                             [matrix_slice], dtype, device)
    for number in range(1, NUM_TESTED_ADAPTERS + 1):
        lora_linear.lora_weights.store_adapter(adapter_slots.allocate_slot(number, rank), 0,
                                               random_tensor(rank, num_inputs), random_tensor(num_outputs, rank))
    x = random_tensor(max(sum(span.length for span in spans) for spans in TESTED_BATCHES), num_inputs)

    def compute_first_row(spans: list[AdapterRowSpan]) -> Tensor:
        adapter_routing.set_rows(spans)
        return lora_linear(x[:sum(span.length for span in spans)])[0]

    alone = compute_first_row([AdapterRowSpan(1, 1)])
    return not all(torch.equal(compute_first_row(spans), alone) for spans in TESTED_BATCHES)
