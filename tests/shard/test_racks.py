"""Adapters of about the same rank hang side by side."""

import pytest

from shard.adapters.racks import KINDS, LEAST_SIZE, MOST_SIZE, WIDTH, Place, Racks, Shelf, size_for


@pytest.mark.parametrize(("rank", "size"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_there_is_room_for_a_power_of_two(rank: int, size: int) -> None:
    assert size_for(rank) == size


def test_they_hang_in_the_order_in_which_they_come_and_then_on_the_next_shelf() -> None:
    racks = Racks()
    taken = [racks.take(number, 16) for number in range(WIDTH + 1)]
    assert taken == [*(Place(Shelf(16, 0), slot) for slot in range(WIDTH)), Place(Shelf(16, 1), 0)]
    assert racks.take(100, 32) == Place(Shelf(32, 0), 0)


def test_what_was_freed_is_taken_first() -> None:
    racks = Racks()
    places = [racks.take(number, 8) for number in range(5)]
    racks.free(2)
    assert racks.find(2) is None
    assert racks.take(9, 8) == places[2] == racks.find(9)


def test_places_have_rows_of_their_own() -> None:
    sizes = [LEAST_SIZE << kind for kind in range(KINDS)]
    assert sizes[-1] == MOST_SIZE
    rows = [Place(Shelf(size, number), slot).row for size in sizes for number in range(5) for slot in range(WIDTH)]
    assert sorted(rows) == [*range(5 * WIDTH * KINDS)]
