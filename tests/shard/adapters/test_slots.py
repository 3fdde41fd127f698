"""Adapters of about the same rank get adjacent slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard.adapters.slots import WIDTH, Place, Racks, Shelf, size_for


@pytest.mark.parametrize(("rank", "size"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_there_is_room_for_a_power_of_two(rank: int, size: int) -> None:
    assert size_for(rank) == size


def test_they_hang_in_the_order_in_which_they_come_and_then_on_the_next_shelf() -> None:
    racks = Racks()
    taken = [racks.take(number, 16) for number in range(WIDTH + 1)]
    assert taken == [*(Place(Shelf(16, 0), slot, slot) for slot in range(WIDTH)), Place(Shelf(16, 1), 0, WIDTH)]
    assert racks.take(100, 32) == Place(Shelf(32, 0), 0, WIDTH + 1)


def test_what_was_freed_is_taken_first() -> None:
    racks = Racks()
    places = [racks.take(number, 8) for number in range(5)]
    racks.free(2)
    assert racks.find(2) is None
    assert racks.take(9, 8) == places[2] == racks.find(9)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([4, 16, 64]))))
def test_rows_are_as_many_as_there_were_adapters_at_once(changes: list[tuple[int, int]]) -> None:
    """Each adapter has a row of its own, whatever its rank."""
    racks, there, most = Racks(), dict[int, Place](), 0
    for adapter, rank in changes:
        if adapter in there:
            racks.free(adapter)
            del there[adapter]
        else:
            there[adapter] = racks.take(adapter, rank)
        most = max(most, len(there))
        rows = [place.row for place in there.values()]
        assert len(rows) == len({(place.shelf, place.slot) for place in there.values()}) == len(set(rows))
        assert all(row < most for row in rows)
