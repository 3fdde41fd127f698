"""Every row with an adapter is in exactly one tile of that adapter; no other row is in a tile."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.lora.lora_work_list import ROWS_PER_ENTRY, LoraWorkList, StaticLoraWorkList
from shard.lora.routing import NO_ADAPTER, ROWS_PER_TILE, AdapterRouting, AdapterRowSpan
from shard.lora.slot_assignment import MAX_PADDED_RANK, AdapterSlot, AdapterSlots

CPU = torch.device("cpu")
ADAPTER_RUN_LISTS = st.lists(st.builds(AdapterRowSpan, st.integers(0, 6), st.integers(1, 11)), min_size=1, max_size=12)


def make_routing(ranks: dict[int, int]) -> AdapterRouting:
    adapter_slots = AdapterSlots()
    for adapter, rank in ranks.items():
        adapter_slots.assign(adapter, rank)
    return AdapterRouting(CPU, adapter_slots)


def list_rows(row_indices: torch.Tensor | None, num_rows: int) -> list[int]:
    return [*range(num_rows)] if row_indices is None else row_indices.tolist()


@given(ADAPTER_RUN_LISTS, st.dictionaries(st.integers(1, 6), st.sampled_from([4, 8, 16])))
def test_tiles_hold_each_row_once_under_its_adapter(runs: list[AdapterRowSpan], ranks: dict[int, int]) -> None:
    adapter_routing = make_routing(ranks)
    expected = {row: adapter for row, adapter in enumerate(run.adapter for run in runs for _ in range(run.length))
                if adapter in ranks}
    adapter_by_slot = {adapter_routing._adapter_slots.find(adapter): adapter for adapter in ranks}
    adapter_by_row: dict[int, int] = {}
    with adapter_routing.route_rows(runs):
        num_rows, num_unpadded = sum(run.length for run in runs), 0
        for tiles in adapter_routing.tiles:
            rows = list_rows(tiles.input_rows, num_rows)
            unpadded_indices = list_rows(tiles.unpadded_indices, len(rows))
            assert [rows[place] for place in unpadded_indices] == list_rows(tiles.target_rows, num_rows)
            num_unpadded += len(unpadded_indices)
            assert len(tiles.slot_range) in {1, len(rows) // ROWS_PER_TILE}
            for place in unpadded_indices:
                slot = tiles.slot_range[place // ROWS_PER_TILE if len(tiles.slot_range) > 1 else 0]
                adapter_by_row[rows[place]] = next(
                    adapter for at, adapter in adapter_by_slot.items()
                    if at is not None and (at.bucket, at.index_in_bucket) == (tiles.bucket, slot))
        assert num_unpadded == len(expected)
    assert adapter_by_row == expected
    assert adapter_routing.tiles == ()


@given(ADAPTER_RUN_LISTS, st.dictionaries(st.integers(1, 6), st.sampled_from([4, 8, 16])))
def test_kernel_work_has_each_row_once_under_its_adapter(runs: list[AdapterRowSpan], ranks: dict[int, int]) -> None:
    adapter_routing = make_routing(ranks)
    expected = {row: adapter_routing._adapter_slots.find(adapter)
                for row, adapter in enumerate(run.adapter for run in runs for _ in range(run.length))
                if adapter in ranks}
    with adapter_routing.route_rows(runs):
        work = adapter_routing.lora_work
    if work is None:
        assert not expected
        return
    used_slots = [place for place in expected.values() if place is not None]
    assert (work.used_slots, work.shrunk_size) == ({*used_slots}, sum(place.bucket.padded_rank for place in used_slots))
    assert read_slots_by_row(work, adapter_routing._adapter_slots) == expected
    assert all(0 < count <= ROWS_PER_ENTRY for *_, count, _ in work.entries.tolist())
    assert int(work.num_entries) == len(work.entries)


def read_slots_by_row(work: LoraWorkList, adapter_slots: AdapterSlots) -> dict[int, AdapterSlot]:
    """Return the slot of each row's adapter. Checks that rows do not share space in the intermediate buffer."""
    entries = work.entries[:int(work.num_entries)].tolist()
    slot_by_table_row = {place.table_row: place for place in adapter_slots._slot_of_adapter.values()}
    used_indices = [number for _, size, _, count, begin in entries for number in range(begin, begin + count * size)]
    assert len(used_indices) == len(set(used_indices))
    assert not used_indices or 0 <= min(used_indices) <= max(used_indices) < work.shrunk_size
    assert all(slot_by_table_row[at].bucket.padded_rank == size for at, size, *_ in entries)
    row_slots = [(row, slot_by_table_row[at]) for at, _, first, count, _ in entries
                 for row in work.row_indices.tolist()[first:first + count]]
    assert len(row_slots) == len(dict(row_slots))
    return dict(row_slots)


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=40), min_size=1, max_size=4),
       st.dictionaries(st.integers(1, 6), st.sampled_from([4, 8, 16])))
def test_static_work_is_that_of_the_last_step(steps: list[list[int]], ranks: dict[int, int]) -> None:
    adapter_routing, static_work = make_routing(ranks), StaticLoraWorkList(48, CPU)
    work = static_work.view_rows(40)
    for adapters in steps:
        assert adapter_routing.write_static_work(static_work, adapters)
        slot_by_row = read_slots_by_row(work, adapter_routing._adapter_slots)
        assert slot_by_row == {row: adapter_routing._adapter_slots.find(adapter) for row, adapter in enumerate(adapters)
                               if adapter in ranks}
    assert (work.shrunk_size, work.used_slots, len(work.entries)) == (40 * MAX_PADDED_RANK, None, 40)
    adapter_routing.head_or_embedding_adapters.add(7)
    assert not adapter_routing.write_static_work(static_work, [1, 7])
    assert read_slots_by_row(work, adapter_routing._adapter_slots) == slot_by_row


@given(ADAPTER_RUN_LISTS, st.data())
def test_selected_rows_keep_their_adapters(runs: list[AdapterRowSpan], data: st.DataObject) -> None:
    adapter_routing = make_routing({})
    adapters = [run.adapter for run in runs for _ in range(run.length)]
    selected_rows = data.draw(st.lists(st.integers(0, len(adapters) - 1), min_size=1, max_size=20))
    with adapter_routing.route_rows(runs), adapter_routing.route_selected_rows(torch.tensor(selected_rows)):
        adapter_by_row = {row: band.adapter for band in adapter_routing.adapter_rows for row in band.rows.tolist()}
    assert adapter_by_row == {row: adapters[place] for row, place in enumerate(selected_rows)
                              if adapters[place] != NO_ADAPTER}


def test_adapters_in_adjacent_slots_share_a_matmul() -> None:
    adapter_routing = make_routing(dict.fromkeys((1, 2, 3, 4), 8) | {5: 16})
    with adapter_routing.route_rows([AdapterRowSpan(number, 1) for number in (3, 0, 5, 1, 2)]):
        assert [(tiles.bucket.padded_rank, tiles.slot_range)
                for tiles in adapter_routing.tiles] == [(8, range(3)), (16, range(1))]
    with adapter_routing.route_rows([AdapterRowSpan(1, 1), AdapterRowSpan(3, 1)]):
        assert [tiles.slot_range for tiles in adapter_routing.tiles] == [range(1), range(2, 3)]
    with adapter_routing.route_rows([AdapterRowSpan(1, 9), AdapterRowSpan(2, 1)]):
        assert [(tiles.slot_range, len(list_rows(tiles.input_rows, 10))) for tiles in adapter_routing.tiles] == [
            (range(1), 12), (range(1, 2), 8)]


def test_rows_already_in_tile_order_are_not_gathered() -> None:
    adapter_routing = make_routing({1: 8, 2: 8})
    with adapter_routing.route_rows([AdapterRowSpan(1, 8)]):
        assert adapter_routing.tiles[0][2:] == (None, None, None)
    with adapter_routing.route_rows([AdapterRowSpan(2, 1), AdapterRowSpan(1, 1)]):
        (tiles,) = adapter_routing.tiles
        assert (list_rows(tiles.input_rows, 2), list_rows(tiles.unpadded_indices, 8),
                tiles.target_rows) == ([1, 1, 1, 1, 0, 0, 0, 0], [4, 0], None)


def test_leaving_nested_routing_restores_the_outer_one() -> None:
    adapter_routing = make_routing({1: 8})
    with adapter_routing.route_rows([AdapterRowSpan(1, 2)]):
        with adapter_routing.route_rows([AdapterRowSpan(0, 2)]):
            assert not adapter_routing.adapter_rows
        assert adapter_routing.adapter_rows[0].rows.tolist() == [0, 1]
