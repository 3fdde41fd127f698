from array import array
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.record import Ask, Record
from benchmarks.study.seats import seats, stays

STAYS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda stay: (stay[0], stay[0] + stay[1])))


@given(STAYS)
def test_nobody_shares_a_slot_and_slots_are_no_more_than_are_there_at_once(found: list[tuple[float, float]]) -> None:
    taken = seats(found)
    assert sorted((seat.begin, seat.end) for seat in taken) == sorted(found)
    for one, other in combinations(taken, 2):
        assert one.slot != other.slot or one.end <= other.begin or other.end <= one.begin
    most = max((sum(begin <= at < end for begin, end in found) for at, _ in found), default=0)
    assert len({seat.slot for seat in taken}) == most


def test_a_stay_is_from_the_first_token_to_the_last() -> None:
    streamed = Record(Ask(0, "", 2), 0.0, 3.0, array("d", [1.0, 2.0]))
    assert stays([streamed, Record(Ask(0, "", 1), 0.0, 3.0)]) == [(1.0, 2.0)]
