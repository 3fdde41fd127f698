"""The LoRA addition of a row is the product of its adapter's matrices, bit-identical in any batch."""

from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.process_memory import needs_less_memory
from torch import Tensor

from shard.lora import exactness_check
from shard.lora.fused_linear_parts import WeightSlice
from shard.lora.lora_linear import LinearLoraTarget
from shard.lora.lora_torch import multiply_tiles
from shard.lora.routing import AdapterRouting, AdapterRowSpan
from shard.lora.slot_assignment import AdapterSlots

CPU = torch.device("cpu")
NUM_INPUTS, NUM_OUTPUTS = 48, 40
RANK_BY_ADAPTER = {1: 4, 2: 8, 3: 5, 4: 16, 5: 40}


class AdaptedLinear:
    """A fused linear with two adapted parts; only adapters with odd ids change the second part."""

    def __init__(self) -> None:
        adapter_slots = AdapterSlots()
        self.adapter_routing = AdapterRouting(CPU, adapter_slots)
        weight_slices = [WeightSlice("q", (NUM_OUTPUTS, NUM_INPUTS), range(NUM_OUTPUTS), range(NUM_INPUTS)),
                         WeightSlice("k", (16, NUM_INPUTS), range(8, 16), range(NUM_INPUTS)),
                         WeightSlice("k", (16, NUM_INPUTS), range(4), range(NUM_INPUTS))]
        self.lora_target = LinearLoraTarget(self.adapter_routing, weight_slices, torch.float32, CPU)
        self.matrices: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        generator = torch.Generator().manual_seed(0)
        for adapter, rank in RANK_BY_ADAPTER.items():
            slot = adapter_slots.assign(adapter, rank)
            for number, part in enumerate(self.lora_target.parts[:1 + adapter % 2]):
                down = torch.randn(rank, NUM_INPUTS, generator=generator)
                up = torch.randn(part.shape[0], rank, generator=generator)
                self.matrices[adapter, number] = part.slice_lora_matrices(down, up)
                self.lora_target.lora_weights.store_adapter(slot, number, *self.matrices[adapter, number])

    def apply_lora(self, x: Tensor, y: Tensor, runs: list[AdapterRowSpan]) -> Tensor:
        with self.adapter_routing.route_rows(runs):
            return self.lora_target.apply_adapters(x, y.clone())


ADAPTED_LINEAR = AdaptedLinear()


@given(st.lists(st.builds(AdapterRowSpan, st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=8),
       st.integers(0, 99))
@settings(max_examples=200)
def test_each_row_uses_its_own_adapter_in_any_batch(runs: list[AdapterRowSpan], seed: int) -> None:
    adapters = [run.adapter for run in runs for _ in range(run.length)]
    torch.manual_seed(seed)
    x, y = torch.randn(len(adapters), NUM_INPUTS), torch.randn(len(adapters), NUM_OUTPUTS + 12)
    batched = ADAPTED_LINEAR.apply_lora(x, y, runs)
    for row, adapter in enumerate(adapters):
        alone = ADAPTED_LINEAR.apply_lora(x[row:row + 1], y[row:row + 1], [AdapterRowSpan(adapter, 1)])[0]
        assert torch.equal(batched[row], alone)
        expected = y[row].double()
        for number, part in enumerate(ADAPTED_LINEAR.lora_target.parts):
            if (both := ADAPTED_LINEAR.matrices.get((adapter, number))) is not None:
                down, up = (matrix.double() for matrix in both)
                expected[part.output_columns.start:part.output_columns.stop] += up @ (down @ x[row].double())
        torch.testing.assert_close(alone.double(), expected, atol=1e-4, rtol=1e-4)


def test_cleared_slot_adds_nothing() -> None:
    linear = AdaptedLinear()
    slot = linear.adapter_routing._adapter_slots.find(3)
    assert slot is not None
    linear.lora_target.lora_weights.clear_slot(slot)
    x, y = torch.randn(2, NUM_INPUTS), torch.randn(2, NUM_OUTPUTS + 12)
    assert torch.equal(linear.apply_lora(x, y, [AdapterRowSpan(3, 2)]), y)


def test_exactness_check_finds_results_that_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exactness_check.find_batch_dependence([ADAPTED_LINEAR.lora_target], torch.float32, CPU) == ""

    def multiply_depending_on_batch_size(tiles: Tensor, matrices: Tensor, slots: range) -> Tensor:
        return multiply_tiles(tiles, matrices, slots) * (1 + 1e-6 * len(tiles))

    monkeypatch.setattr("shard.lora.lora_torch.multiply_tiles", multiply_depending_on_batch_size)
    assert "adds to a product of 48 inputs and 12 outputs has other bits" in exactness_check.find_batch_dependence(
        [ADAPTED_LINEAR.lora_target], torch.float32, CPU)


def test_one_adapter_allocates_memory_for_one_adapter_only() -> None:
    adapter_slots, adapter_ids = AdapterSlots(), count(1)
    lora_target = LinearLoraTarget(AdapterRouting(CPU, adapter_slots),
                                   [WeightSlice("q", (4096, 4096), range(4096), range(4096))], torch.float32, CPU)
    down, up = torch.randn(64, 4096), torch.randn(4096, 64)

    def put_adapter() -> None:
        assert lora_target.lora_weights.store_adapter(adapter_slots.assign(next(adapter_ids), 64), 0, down,
                                                      up) == down.nbytes + up.nbytes

    # memory may come in pages of 2 MiB; all slots need 16x
    assert needs_less_memory(4 * (down.nbytes + up.nbytes), put_adapter)
