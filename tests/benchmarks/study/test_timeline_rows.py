from array import array
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.study.timeline_rows import assign_timeline_rows, list_streaming_intervals

RANDOM_STAYS = st.lists(st.tuples(st.integers(0, 50),
                                  st.integers(1, 20)).map(lambda stay: (stay[0], stay[0] + stay[1])))


@given(RANDOM_STAYS)
def test_stays_in_a_slot_do_not_overlap_and_slots_are_minimal(stays: list[tuple[float, float]]) -> None:
    rows = assign_timeline_rows(stays)
    assert sorted((row.start, row.end) for row in rows) == sorted(stays)
    for one, other in combinations(rows, 2):
        assert one.slot != other.slot or one.end <= other.start or other.end <= one.start
    max_overlap = max((sum(begin <= at < end for begin, end in stays) for at, _ in stays), default=0)
    assert len({row.slot for row in rows}) == max_overlap


def test_stay_is_from_the_first_to_the_last_token() -> None:
    streamed = RequestRecord(PlannedRequest(0, "", 2), 0.0, 3.0, array("d", [1.0, 2.0]))
    assert list_streaming_intervals([streamed, RequestRecord(PlannedRequest(0, "", 1), 0.0, 3.0)]) == [(1.0, 2.0)]
