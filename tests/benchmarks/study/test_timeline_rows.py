from array import array
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.request_record import BenchRequest, RequestRecord
from benchmarks.study.timeline_rows import assign_timeline_rows, list_streaming_intervals

RANDOM_STAYS = st.lists(st.tuples(st.integers(0, 50),
                                  st.integers(1, 20)).map(lambda stay: (stay[0], stay[0] + stay[1])))


@given(RANDOM_STAYS)
def test_stays_in_a_slot_do_not_overlap_and_slots_are_minimal(found: list[tuple[float, float]]) -> None:
    taken = assign_timeline_rows(found)
    assert sorted((seat.start, seat.end) for seat in taken) == sorted(found)
    for one, other in combinations(taken, 2):
        assert one.slot != other.slot or one.end <= other.start or other.end <= one.start
    most = max((sum(begin <= at < end for begin, end in found) for at, _ in found), default=0)
    assert len({seat.slot for seat in taken}) == most


def test_stay_is_from_the_first_to_the_last_token() -> None:
    streamed = RequestRecord(BenchRequest(0, "", 2), 0.0, 3.0, array("d", [1.0, 2.0]))
    assert list_streaming_intervals([streamed, RequestRecord(BenchRequest(0, "", 1), 0.0, 3.0)]) == [(1.0, 2.0)]
