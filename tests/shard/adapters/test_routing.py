"""Every row with an adapter is in exactly one tile of that adapter; no other row is in a tile."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.adapters.lora_work import ROWS, StandingWork, Work
from shard.adapters.routing import NONE, TILE, Bearers, Run
from shard.adapters.slots import MOST_SIZE, Place, Racks

CPU = torch.device("cpu")
RUNS = st.lists(st.builds(Run, st.integers(0, 6), st.integers(1, 11)), min_size=1, max_size=12)


def made(ranks: dict[int, int]) -> Bearers:
    racks = Racks()
    for adapter, rank in ranks.items():
        racks.take(adapter, rank)
    return Bearers(CPU, racks)


def listed(numbers: torch.Tensor | None, count: int) -> list[int]:
    return [*range(count)] if numbers is None else numbers.tolist()


@given(RUNS, st.dictionaries(st.integers(1, 6), st.sampled_from([4, 8, 16])))
def test_tiles_hold_each_row_once_under_its_adapter(runs: list[Run], ranks: dict[int, int]) -> None:
    bearers = made(ranks)
    expected = {row: adapter for row, adapter in enumerate(run.adapter for run in runs for _ in range(run.length))
                if adapter in ranks}
    by_place = {bearers._racks.find(adapter): adapter for adapter in ranks}
    found: dict[int, int] = {}
    with bearers.rows(runs):
        num_rows, num_found = sum(run.length for run in runs), 0
        for tiles in bearers.tiles:
            rows = listed(tiles.rows, num_rows)
            held = listed(tiles.held, len(rows))
            assert [rows[place] for place in held] == listed(tiles.targets, num_rows)
            num_found += len(held)
            assert len(tiles.slots) in {1, len(rows) // TILE}
            for place in held:
                slot = tiles.slots[place // TILE if len(tiles.slots) > 1 else 0]
                found[rows[place]] = next(adapter for at, adapter in by_place.items()
                                          if at is not None and (at.shelf, at.slot) == (tiles.shelf, slot))
        assert num_found == len(expected)
    assert found == expected
    assert bearers.tiles == ()


@given(RUNS, st.dictionaries(st.integers(1, 6), st.sampled_from([4, 8, 16])))
def test_programs_of_kernels_have_each_row_once_under_its_adapter(runs: list[Run], ranks: dict[int, int]) -> None:
    bearers = made(ranks)
    expected = {row: bearers._racks.find(adapter)
                for row, adapter in enumerate(run.adapter for run in runs for _ in range(run.length))
                if adapter in ranks}
    with bearers.rows(runs):
        work = bearers.work
    if work is None:
        assert not expected
        return
    taken = [place for place in expected.values() if place is not None]
    assert (work.places, work.room) == ({*taken}, sum(place.shelf.size for place in taken))
    assert told_by(work, bearers._racks) == expected
    assert all(0 < count <= ROWS for *_, count, _ in work.entries.tolist())
    assert int(work.number) == len(work.entries)


def told_by(work: Work, racks: Racks) -> dict[int, Place]:
    """Return the slot of each row's adapter. Checks that rows do not share space in the intermediate buffer."""
    entries = work.entries[:int(work.number)].tolist()
    by_row = {place.row: place for place in racks._places.values()}
    taken = [number for _, size, _, count, begin in entries for number in range(begin, begin + count * size)]
    assert len(taken) == len(set(taken))
    assert not taken or 0 <= min(taken) <= max(taken) < work.room
    assert all(by_row[at].shelf.size == size for at, size, *_ in entries)
    found = [(row, by_row[at]) for at, _, first, count, _ in entries
             for row in work.rows.tolist()[first:first + count]]
    assert len(found) == len(dict(found))
    return dict(found)


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=40), min_size=1, max_size=4),
       st.dictionaries(st.integers(1, 6), st.sampled_from([4, 8, 16])))
def test_work_that_stands_is_that_of_the_last_step(steps: list[list[int]], ranks: dict[int, int]) -> None:
    bearers, standing = made(ranks), StandingWork(48, CPU)
    work = standing.of(40)
    for adapters in steps:
        assert bearers.write(standing, adapters)
        found = told_by(work, bearers._racks)
        assert found == {row: bearers._racks.find(adapter) for row, adapter in enumerate(adapters) if adapter in ranks}
    assert (work.room, work.places, len(work.entries)) == (40 * MOST_SIZE, None, 40)
    bearers.others.add(7)
    assert not bearers.write(standing, [1, 7])
    assert told_by(work, bearers._racks) == found


@given(RUNS, st.data())
def test_some_rows_in_another_order_keep_their_adapters(runs: list[Run], data: st.DataObject) -> None:
    bearers = made({})
    adapters = [run.adapter for run in runs for _ in range(run.length)]
    places = data.draw(st.lists(st.integers(0, len(adapters) - 1), min_size=1, max_size=20))
    with bearers.rows(runs), bearers.chosen(torch.tensor(places)):
        found = {row: band.adapter for band in bearers.bands for row in band.rows.tolist()}
    assert found == {row: adapters[place] for row, place in enumerate(places) if adapters[place] != NONE}


def test_who_hangs_side_by_side_is_multiplied_together() -> None:
    bearers = made(dict.fromkeys((1, 2, 3, 4), 8) | {5: 16})
    with bearers.rows([Run(number, 1) for number in (3, 0, 5, 1, 2)]):
        assert [(tiles.shelf.size, tiles.slots) for tiles in bearers.tiles] == [(8, range(3)), (16, range(1))]
    with bearers.rows([Run(1, 1), Run(3, 1)]):
        assert [tiles.slots for tiles in bearers.tiles] == [range(1), range(2, 3)]
    with bearers.rows([Run(1, 9), Run(2, 1)]):
        assert [(tiles.slots, len(listed(tiles.rows, 10))) for tiles in bearers.tiles] == [
            (range(1), 12), (range(1, 2), 8)]


def test_rows_that_lie_as_they_should_are_not_gathered() -> None:
    bearers = made({1: 8, 2: 8})
    with bearers.rows([Run(1, 8)]):
        assert bearers.tiles[0][2:] == (None, None, None)
    with bearers.rows([Run(2, 1), Run(1, 1)]):
        (tiles,) = bearers.tiles
        assert (listed(tiles.rows, 2), listed(tiles.held, 8), tiles.targets) == ([1, 1, 1, 1, 0, 0, 0, 0], [4, 0], None)


def test_what_was_said_before_holds_again() -> None:
    bearers = made({1: 8})
    with bearers.rows([Run(1, 2)]):
        with bearers.rows([Run(0, 2)]):
            assert not bearers.bands
        assert bearers.bands[0].rows.tolist() == [0, 1]
