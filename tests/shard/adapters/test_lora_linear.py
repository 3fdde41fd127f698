"""The LoRA addition of a row is the product of its adapter's matrices, bit-identical in any batch."""

from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.process_memory import takes_less
from torch import Tensor

from shard.adapters import exactness
from shard.adapters.lora_linear import Site
from shard.adapters.lora_torch import multiplied
from shard.adapters.routing import Bearers, Run
from shard.adapters.slots import Racks
from shard.adapters.weight_slices import Portion

CPU = torch.device("cpu")
INPUTS, OUTPUTS = 48, 40
RANKS = {1: 4, 2: 8, 3: 5, 4: 16, 5: 40}


class World:
    """A fused linear with two adapted parts; only adapters with odd ids change the second part."""

    def __init__(self) -> None:
        racks = Racks()
        self.bearers = Bearers(CPU, racks)
        portions = [Portion("q", (OUTPUTS, INPUTS), range(OUTPUTS), range(INPUTS)),
                    Portion("k", (16, INPUTS), range(8, 16), range(INPUTS)),
                    Portion("k", (16, INPUTS), range(4), range(INPUTS))]
        self.site = Site(self.bearers, portions, torch.float32, CPU)
        self.matrices: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        generator = torch.Generator().manual_seed(0)
        for adapter, rank in RANKS.items():
            place = racks.take(adapter, rank)
            for number, part in enumerate(self.site.parts[:1 + adapter % 2]):
                down = torch.randn(rank, INPUTS, generator=generator)
                up = torch.randn(part.shape[0], rank, generator=generator)
                self.matrices[adapter, number] = part.mine(down, up)
                self.site.added.put(place, number, *self.matrices[adapter, number])

    def changed(self, x: Tensor, y: Tensor, runs: list[Run]) -> Tensor:
        with self.bearers.rows(runs):
            return self.site.changed(x, y.clone())


WORLD = World()


@given(st.lists(st.builds(Run, st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=200)
def test_each_row_gets_its_own_in_any_company(runs: list[Run], seed: int) -> None:
    adapters = [run.adapter for run in runs for _ in range(run.length)]
    torch.manual_seed(seed)
    x, y = torch.randn(len(adapters), INPUTS), torch.randn(len(adapters), OUTPUTS + 12)
    together = WORLD.changed(x, y, runs)
    for row, adapter in enumerate(adapters):
        alone = WORLD.changed(x[row:row + 1], y[row:row + 1], [Run(adapter, 1)])[0]
        assert torch.equal(together[row], alone)
        expected = y[row].double()
        for number, part in enumerate(WORLD.site.parts):
            if (both := WORLD.matrices.get((adapter, number))) is not None:
                down, up = (matrix.double() for matrix in both)
                expected[part.columns.start:part.columns.stop] += up @ (down @ x[row].double())
        torch.testing.assert_close(alone.double(), expected, atol=1e-4, rtol=1e-4)


def test_a_place_that_was_cleared_adds_nothing() -> None:
    world = World()
    place = world.bearers._racks.find(3)
    assert place is not None
    world.site.added.clear(place)
    x, y = torch.randn(2, INPUTS), torch.randn(2, OUTPUTS + 12)
    assert torch.equal(world.changed(x, y, [Run(3, 2)]), y)


def test_the_gate_finds_a_product_whose_bits_depend_on_company(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exactness.verdict([WORLD.site], torch.float32, CPU) == ""

    def spoiled(tiles: Tensor, matrices: Tensor, slots: range) -> Tensor:
        return multiplied(tiles, matrices, slots) * (1 + 1e-6 * len(tiles))

    monkeypatch.setattr("shard.adapters.lora_torch.multiplied", spoiled)
    assert "adds to a product of 48 inputs and 12 outputs has other bits" in exactness.verdict(
        [WORLD.site], torch.float32, CPU)


def test_an_adapter_takes_the_memory_of_one_though_there_is_room_for_more() -> None:
    racks, numbers = Racks(), count(1)
    site = Site(Bearers(CPU, racks), [Portion("q", (4096, 4096), range(4096), range(4096))], torch.float32, CPU)
    down, up = torch.randn(64, 4096), torch.randn(4096, 64)

    def put() -> None:
        assert site.added.put(racks.take(next(numbers), 64), 0, down, up) == down.nbytes + up.nbytes

    assert takes_less(4 * (down.nbytes + up.nbytes), put)  # memory may come in pages of 2 MiB; all slots need 16x
