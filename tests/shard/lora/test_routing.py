"""Every row with an adapter is in exactly one tile of that adapter; no other row is in a tile. Adapters of about the
same rank get adjacent slots."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.lora.routing import (
    MAX_PADDED_RANK,
    NO_ADAPTER,
    ROWS_PER_ENTRY,
    ROWS_PER_TILE,
    SLOTS_PER_BUCKET,
    AdapterRouting,
    AdapterRowSpan,
    AdapterSlot,
    AdapterSlots,
    LoraWorkList,
    RankBucket,
    StaticLoraWorkList,
    pad_rank,
)

CPU = torch.device("cpu")
ADAPTER_RUN_LISTS = st.lists(st.builds(AdapterRowSpan, st.integers(0, 6), st.integers(1, 11)), min_size=1, max_size=12)


def make_routing(ranks: dict[int, int]) -> AdapterRouting:
    adapter_slots = AdapterSlots()
    for adapter, rank in ranks.items():
        adapter_slots.allocate_slot(adapter, rank)
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
    adapter_routing.set_rows(runs)
    num_rows, num_unpadded = sum(run.length for run in runs), 0
    for tiles in adapter_routing.rows.tiles:
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


@given(ADAPTER_RUN_LISTS, st.dictionaries(st.integers(1, 6), st.sampled_from([4, 8, 16])))
def test_kernel_work_has_each_row_once_under_its_adapter(runs: list[AdapterRowSpan], ranks: dict[int, int]) -> None:
    adapter_routing = make_routing(ranks)
    expected = {row: adapter_routing._adapter_slots.find(adapter)
                for row, adapter in enumerate(run.adapter for run in runs for _ in range(run.length))
                if adapter in ranks}
    adapter_routing.set_rows(runs)
    work = adapter_routing.rows.lora_work
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
    adapter_table_rows = [(row, slot_by_table_row[at]) for at, _, first, count, _ in entries
                 for row in work.row_indices.tolist()[first:first + count]]
    assert len(adapter_table_rows) == len(dict(adapter_table_rows))
    return dict(adapter_table_rows)


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
    adapter_routing.set_rows(runs)
    rows = adapter_routing.rows.select_rows(torch.tensor(selected_rows))
    adapter_by_row = {row: band.adapter for band in rows.adapter_rows for row in band.rows.tolist()}
    assert adapter_by_row == {row: adapters[place] for row, place in enumerate(selected_rows)
                              if adapters[place] != NO_ADAPTER}


def test_adapters_in_adjacent_slots_share_a_matmul() -> None:
    adapter_routing = make_routing(dict.fromkeys((1, 2, 3, 4), 8) | {5: 16})
    adapter_routing.set_rows([AdapterRowSpan(number, 1) for number in (3, 0, 5, 1, 2)])
    assert [(tiles.bucket.padded_rank, tiles.slot_range)
            for tiles in adapter_routing.rows.tiles] == [(8, range(3)), (16, range(1))]
    adapter_routing.set_rows([AdapterRowSpan(1, 1), AdapterRowSpan(3, 1)])
    assert [tiles.slot_range for tiles in adapter_routing.rows.tiles] == [range(1), range(2, 3)]
    adapter_routing.set_rows([AdapterRowSpan(1, 9), AdapterRowSpan(2, 1)])
    assert [(tiles.slot_range, len(list_rows(tiles.input_rows, 10))) for tiles in adapter_routing.rows.tiles] == [
        (range(1), 12), (range(1, 2), 8)]


def test_rows_already_in_tile_order_are_not_gathered() -> None:
    adapter_routing = make_routing({1: 8, 2: 8})
    adapter_routing.set_rows([AdapterRowSpan(1, 8)])
    assert adapter_routing.rows.tiles[0][2:] == (None, None, None)
    adapter_routing.set_rows([AdapterRowSpan(2, 1), AdapterRowSpan(1, 1)])
    (tiles,) = adapter_routing.rows.tiles
    assert (list_rows(tiles.input_rows, 2), list_rows(tiles.unpadded_indices, 8),
            tiles.target_rows) == ([1, 1, 1, 1, 0, 0, 0, 0], [4, 0], None)


def test_rows_hold_until_others_are_set() -> None:
    adapter_routing = make_routing({1: 8})
    assert adapter_routing.rows.tiles == ()
    adapter_routing.set_rows([AdapterRowSpan(1, 2)])
    assert adapter_routing.rows.adapter_rows[0].rows.tolist() == [0, 1]
    adapter_routing.set_rows([AdapterRowSpan(0, 2)])
    assert adapter_routing.rows.adapter_rows == adapter_routing.rows.tiles == ()


# -- slots


@pytest.mark.parametrize(("rank", "size"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_ranks_are_padded_to_a_power_of_two(rank: int, size: int) -> None:
    assert pad_rank(rank) == size


def test_slots_are_assigned_in_order_and_then_in_the_next_bucket() -> None:
    adapter_slots = AdapterSlots()
    assigned = [adapter_slots.allocate_slot(number, 16) for number in range(SLOTS_PER_BUCKET + 1)]
    assert assigned == [*(AdapterSlot(RankBucket(16, 0), slot, slot) for slot in range(SLOTS_PER_BUCKET)),
                        AdapterSlot(RankBucket(16, 1), 0, SLOTS_PER_BUCKET)]
    assert adapter_slots.allocate_slot(100, 32) == AdapterSlot(RankBucket(32, 0), 0, SLOTS_PER_BUCKET + 1)


def test_freed_slots_are_reused_first() -> None:
    adapter_slots = AdapterSlots()
    slots = [adapter_slots.allocate_slot(number, 8) for number in range(5)]
    adapter_slots.release(2)
    assert adapter_slots.find(2) is None
    assert adapter_slots.allocate_slot(9, 8) == slots[2] == adapter_slots.find(9)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([4, 16, 64]))))
def test_table_rows_are_as_few_as_the_most_adapters_at_once(changes: list[tuple[int, int]]) -> None:
    """Each adapter has a row of its own, whatever its rank."""
    adapter_slots, slot_by_adapter, max_at_once = AdapterSlots(), dict[int, AdapterSlot](), 0
    for adapter, rank in changes:
        if adapter in slot_by_adapter:
            adapter_slots.release(adapter)
            del slot_by_adapter[adapter]
        else:
            slot_by_adapter[adapter] = adapter_slots.allocate_slot(adapter, rank)
        max_at_once = max(max_at_once, len(slot_by_adapter))
        rows = [place.table_row for place in slot_by_adapter.values()]
        assert len(rows) == len({(place.bucket, place.index_in_bucket)
                                 for place in slot_by_adapter.values()}) == len(set(rows))
        assert all(row < max_at_once for row in rows)
