"""Adapters of about the same rank get adjacent slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard.lora.slot_assignment import SLOTS_PER_BUCKET, AdapterSlot, AdapterSlots, RankBucket, pad_rank


@pytest.mark.parametrize(("rank", "size"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_ranks_are_padded_to_a_power_of_two(rank: int, size: int) -> None:
    assert pad_rank(rank) == size


def test_slots_are_assigned_in_order_and_then_in_the_next_bucket() -> None:
    adapter_slots = AdapterSlots()
    assigned = [adapter_slots.assign(number, 16) for number in range(SLOTS_PER_BUCKET + 1)]
    assert assigned == [*(AdapterSlot(RankBucket(16, 0), slot, slot) for slot in range(SLOTS_PER_BUCKET)),
                        AdapterSlot(RankBucket(16, 1), 0, SLOTS_PER_BUCKET)]
    assert adapter_slots.assign(100, 32) == AdapterSlot(RankBucket(32, 0), 0, SLOTS_PER_BUCKET + 1)


def test_freed_slots_are_reused_first() -> None:
    adapter_slots = AdapterSlots()
    slots = [adapter_slots.assign(number, 8) for number in range(5)]
    adapter_slots.release(2)
    assert adapter_slots.find(2) is None
    assert adapter_slots.assign(9, 8) == slots[2] == adapter_slots.find(9)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([4, 16, 64]))))
def test_table_rows_are_as_few_as_the_most_adapters_at_once(changes: list[tuple[int, int]]) -> None:
    """Each adapter has a row of its own, whatever its rank."""
    adapter_slots, slot_by_adapter, max_at_once = AdapterSlots(), dict[int, AdapterSlot](), 0
    for adapter, rank in changes:
        if adapter in slot_by_adapter:
            adapter_slots.release(adapter)
            del slot_by_adapter[adapter]
        else:
            slot_by_adapter[adapter] = adapter_slots.assign(adapter, rank)
        max_at_once = max(max_at_once, len(slot_by_adapter))
        rows = [place.table_row for place in slot_by_adapter.values()]
        assert len(rows) == len({(place.bucket, place.index_in_bucket)
                                 for place in slot_by_adapter.values()}) == len(set(rows))
        assert all(row < max_at_once for row in rows)
