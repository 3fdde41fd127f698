"""LoRA by kernels, under Triton's interpreter, compared with LoRA by torch."""

import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.uninitialized_memory import poison_memory
from torch import Tensor

pytest.importorskip("triton")  # published for Linux only

from shard.adapters import exactness, lora_linear, lora_triton
from shard.adapters.lora_torch import Stacks
from shard.adapters.lora_work import StandingWork
from shard.adapters.routing import Bearers, Run
from shard.adapters.slots import MOST_SIZE, Place, Racks, Shelf
from shard.adapters.weight_slices import Portion, parts_of

CPU = torch.device("cpu")
CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3}
SPLIT = 2 * lora_triton.PIECE  # fewer than on a GPU: the interpreter is slow, and two pieces test as much as sixteen
INPUTS = SPLIT + 100  # so that sums have two splits, the second of which is not full
WIDTHS = 40, 3, lora_triton.BLOCK + 9
RANKS = {1: 4, 2: 8, 3: 5, 4: 16, 5: 40}
RUNS = st.lists(st.builds(Run, st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=8)


@pytest.fixture(autouse=True, scope="module")
def short_splits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lora_triton, "SPLIT", SPLIT)
        yield


@pytest.fixture(autouse=True)
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch)


class World:
    """A linear of three parts, not all of which every adapter changes, by kernels and by torch."""

    def __init__(self, dtype: torch.dtype) -> None:
        racks = Racks()
        self.dtype = dtype
        self.bearers = Bearers(CPU, racks)
        parts = parts_of([Portion(str(width), (width, INPUTS), range(width), range(INPUTS)) for width in WIDTHS])
        self.ours, self.theirs = (kind(self.bearers, parts, dtype, CPU) for kind in (lora_triton.Slabs, Stacks))
        self.places = {adapter: racks.take(adapter, rank) for adapter, rank in RANKS.items()}
        torch.manual_seed(0)
        for adapter, rank in RANKS.items():
            for part, width in enumerate(WIDTHS[:1 + adapter % 3]):
                down, up = torch.randn(rank, INPUTS) / INPUTS ** 0.5, torch.randn(width, rank)
                sizes = [each.put(self.places[adapter], part, down, up) for each in (self.ours, self.theirs)]
                assert sizes[0] == sizes[1]

    def added(self, x: Tensor, y: Tensor, runs: list[Run], *, by_torch: bool = False) -> Tensor:
        changed = y.clone()
        with self.bearers.rows(runs):
            (self.theirs if by_torch else self.ours).add(x, changed)
        return changed

    def rows(self, runs: list[Run]) -> tuple[Tensor, Tensor]:
        count = sum(run.length for run in runs)
        return torch.randn(count, INPUTS).to(self.dtype), torch.randn(count, sum(WIDTHS)).to(self.dtype)


@pytest.fixture(params=CLOSE, ids=str, scope="module")
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@given(runs=RUNS, seed=st.integers(0, 99))
@settings(max_examples=6)
def test_kernels_add_what_torch_adds(world: World, runs: list[Run], seed: int) -> None:
    torch.manual_seed(seed)
    x, y = world.rows(runs)
    found = world.added(x, y, runs)
    torch.testing.assert_close(found, world.added(x, y, runs, by_torch=True),
                               rtol=CLOSE[world.dtype], atol=4 * CLOSE[world.dtype])
    without = torch.tensor([run.adapter == 0 for run in runs for _ in range(run.length)])
    assert torch.equal(found[without], y[without])


@given(runs=RUNS, seed=st.integers(0, 99))
@settings(max_examples=4)
def test_company_changes_no_bit(world: World, runs: list[Run], seed: int) -> None:
    torch.manual_seed(seed)
    x, y = world.rows(runs)
    together = world.added(x, y, runs)
    adapters = [run.adapter for run in runs for _ in range(run.length)]
    for row in (0, len(adapters) // 2, len(adapters) - 1):
        alone = world.added(x[row:row + 1], y[row:row + 1], [Run(adapters[row], 1)])
        assert torch.equal(together[row], alone[0])


def test_what_is_not_rounded_yet_may_be_added_to() -> None:
    """LoRA is computed in the adapters' type; the output that it is added to keeps its own type."""
    world, runs = World(torch.float16), [Run(1, 2), Run(0, 1), Run(5, 3)]
    x, y = world.rows(runs)
    found, expected = (world.added(x, y.float(), runs, by_torch=by_torch) for by_torch in (False, True))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=1.6e-2)
    assert torch.equal(world.added(x.float(), y, runs), world.added(x, y, runs))


def test_an_adapter_that_comes_between_the_two_launches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot is next to that of an adapter without matrices here, for whose row the first kernel computed nothing."""
    racks = Racks()
    bearers = Bearers(CPU, racks)
    parts = parts_of([Portion("q", (40, INPUTS), range(40), range(INPUTS))])
    ours, x, y = lora_triton.Slabs(bearers, parts, torch.float32, CPU), torch.randn(2, INPUTS), torch.randn(2, 40)
    places, matrices = [racks.take(number, rank) for number, rank in ((1, 8), (2, 64), (3, 64))], (
        torch.randn(8, INPUTS), torch.randn(40, 8))
    ours.put(places[0], 0, *matrices)

    class Between:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*tensors: Tensor, **constants: int) -> None:
                ours.put(places[2], 0, *matrices)
                expand[grid](*tensors, **constants)
            return launch

    expand = lora_triton.expand
    with bearers.rows([Run(1, 1), Run(2, 1)]), monkeypatch.context() as patch:
        patch.setattr(lora_triton, "expand", Between())
        ours.add(x, changed := y.clone())
    assert torch.equal(changed[1], y[1])
    assert not torch.equal(changed[0], y[0])


@pytest.mark.parametrize(("programs", "shared"), [(1, [1, 1, 1]), (12, [6, 4, 2]), (10**6, [6, 6, 6])])
def test_programs_take_turns_where_entries_are_not_known(
        world: World, programs: int, shared: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = [1, 0, 3, 5, 2, 4]
    standing, runs = StandingWork(6, CPU), [Run(adapter, 1) for adapter in adapters]
    x, y = world.rows(runs)
    with world.bearers.rows(runs):
        work = world.bearers.work
    assert work is not None
    monkeypatch.setattr(lora_triton, "PROGRAMS", programs)
    assert lora_triton.programs(work, 1000) == 5
    assert [lora_triton.programs(standing.of(6), others) for others in (1, 3, 6)] == shared
    assert world.bearers.write(standing, adapters)
    changed = y.clone()
    with world.bearers.standing(standing.of(6)):
        world.ours.add(x, changed)
    assert torch.equal(changed, world.added(x, y, runs))


def test_it_takes_what_it_says_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is reserved for adapters that may never be loaded: on a GPU it would be allocated at once."""
    racks = Racks()
    parts = parts_of([Portion(str(width), (width, INPUTS), range(width), range(INPUTS)) for width in WIDTHS])
    ours, place = lora_triton.Slabs(Bearers(CPU, racks), parts, torch.float16, CPU), racks.take(1, 5)
    ours.put(place, 0, torch.randn(5, INPUTS), torch.randn(WIDTHS[0], 5))  # compiles
    made, zeros = list[Tensor](), ours._zeros

    def noted(*shape: int) -> Tensor:
        made.append(zeros(*shape))
        return made[-1]

    monkeypatch.setattr(ours, "_zeros", noted)
    sizes = [ours.put(place, part, torch.randn(5, INPUTS), torch.randn(WIDTHS[part], 5)) for part in (1, 2)]
    assert sizes == [2 * 8 * (INPUTS + WIDTHS[part]) for part in (1, 2)]
    assert sum(sizes) == sum(one.nbytes for one in made)
    kept = [*map(weakref.ref, made)]
    made.clear()
    ours.clear(place)
    assert [one() for one in kept] == [None] * 4
    assert not any(table.any() for table in ours._tables)


def test_rows_may_stand_apart(world: World) -> None:
    runs = [Run(1, 2), Run(3, 1)]
    x, y = world.rows(runs)
    apart = torch.full((3, INPUTS + 7), float("nan"), dtype=world.dtype)
    apart[:, :INPUTS] = x
    assert torch.equal(world.added(apart[:, :INPUTS], y, runs), world.added(x, y, runs))


def test_a_place_that_was_cleared_adds_nothing_and_the_next_only_its_own() -> None:
    world = World(torch.float32)
    x, y = world.rows([Run(5, 2)])
    world.ours.clear(world.places[5])
    world.ours.clear(Racks().take(9, 128))  # a slot that was never used
    assert torch.equal(world.added(x, y, [Run(5, 2)]), y)
    down, up = torch.randn(33, INPUTS), torch.randn(WIDTHS[1], 33)
    for each in (world.ours, world.theirs):
        each.put(world.places[5], 1, down, up)
    found = world.added(x, y, [Run(5, 2)])
    assert not torch.equal(found, y)
    columns = slice(WIDTHS[0], WIDTHS[0] + WIDTHS[1])
    torch.testing.assert_close((found - y)[:, columns], x @ down.T @ up.T, rtol=1e-4, atol=1e-3)
    assert torch.equal(found[:, :WIDTHS[0]], y[:, :WIDTHS[0]])


def test_what_was_captured_before_there_were_adapters_adds_what_they_add() -> None:
    """Any row may use an adapter of any rank in a replayed step, with the same bits as in a launched step."""
    racks = Racks()
    bearers, standing = Bearers(CPU, racks), StandingWork(6, CPU)
    parts = parts_of([Portion(str(width), (width, INPUTS), range(width), range(INPUTS)) for width in WIDTHS])
    ours = lora_triton.Slabs(bearers, parts, torch.float32, CPU)
    x, y = torch.randn(6, INPUTS), torch.randn(6, sum(WIDTHS))

    def replayed() -> Tensor:
        changed = y.clone()
        with bearers.standing(standing.of(6)):
            ours.add(x, changed)
        return changed

    with torch.inference_mode():  # as at warm-up
        assert torch.equal(replayed(), y)
    for adapter, rank in enumerate((3, 40, 3), 1):
        ours.put(racks.take(adapter, rank), 1, torch.randn(rank, INPUTS) / INPUTS ** 0.5, torch.randn(WIDTHS[1], rank))
    racks.take(4, 16)  # has no matrices for this linear
    for adapters in ([1, 2, 0, 3, 4, 2], [2, 2, 2], [0, 4], [3]):
        assert bearers.write(standing, adapters)
        launched = y.clone()
        with bearers.rows([Run(adapter, 1) for adapter in adapters + [0] * (6 - len(adapters))]):
            ours.add(x, launched)
        assert torch.equal(replayed(), launched)
        changed = [not torch.equal(*rows) for rows in zip(launched, y, strict=True)]
        assert changed == [adapter in {1, 2, 3} for adapter in adapters] + [False] * (6 - len(adapters))


@pytest.mark.parametrize("place", [
    Place(Shelf(2 * MOST_SIZE, 0), 0, 0), Place(Shelf(8, 0), 0, lora_triton.MOST_ADAPTERS)])
def test_what_there_is_no_room_for_is_told(world: World, place: Place) -> None:
    with pytest.raises(RuntimeError, match="1024 adapters can be on a GPU at once, and none of a rank above 1024"):
        world.ours.put(place, 0, torch.zeros(1, INPUTS), torch.zeros(WIDTHS[0], 1))


def test_what_could_not_be_copied_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is freed as soon as the slot is cleared."""
    racks = Racks()
    parts = parts_of([Portion("q", (40, INPUTS), range(40), range(INPUTS))])
    ours, place = lora_triton.Slabs(Bearers(CPU, racks), parts, torch.float32, CPU), racks.take(1, 8)
    with pytest.raises(RuntimeError):
        ours.put(place, 0, torch.randn(8, INPUTS), torch.randn(41, 8))
    assert not any(table.any() for table in ours._tables)
    ours.clear(place)
    assert not ours._matrices


def test_the_gate_looks_at_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_linear, "kernels", lambda device, module: lora_triton)
    site = lora_linear.Site(Bearers(CPU, Racks()), [Portion("q", (24, 72), range(24), range(72))], torch.float32, CPU)
    assert isinstance(site.added, lora_triton.Slabs)
    assert exactness.verdict([site], torch.float32, CPU) == ""
