from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.scheduler.sequence import RequestPhase, RequestTimeline
from router.telemetry.phase_overlap import (
    measure_mean_other_decodes,
    measure_overlaps,
    merge_intervals,
    sum_overlap,
    sum_prefill_overlap_seconds,
)

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))),
                     max_size=8)


def make_timeline(*phases: tuple[float, RequestPhase], ended_at: float | None = None) -> RequestTimeline:
    timeline = RequestTimeline(*phases[0])
    for start, phase in phases[1:]:
        timeline.enter_phase(phase, start)
    if ended_at is not None:
        timeline.end(ended_at)
    return timeline


def test_queue_is_explained_by_what_the_first_in_it_waits_for() -> None:
    own = make_timeline((1.0, RequestPhase.QUEUE), (9.0, RequestPhase.PREFILL), ended_at=10.0)
    first = make_timeline((0.0, RequestPhase.NO_FREE_BLOCKS), (4.0, RequestPhase.PREFILL), ended_at=8.0)
    second = make_timeline((0.5, RequestPhase.QUEUE), (4.0, RequestPhase.BATCH_FULL), (6.0, RequestPhase.PREFILL),
                           ended_at=7.0)
    assert measure_overlaps(own, [first, second], 20.0) == {
        RequestPhase.QUEUE: {RequestPhase.NO_FREE_BLOCKS: 3.0, RequestPhase.BATCH_FULL: 2.0}}


def test_decode_is_explained_by_prompts_of_others_counted_once() -> None:
    own = make_timeline((0.0, RequestPhase.PREFILL), (1.0, RequestPhase.DECODE))
    others = [make_timeline((2.0, RequestPhase.PREFILL), (4.0, RequestPhase.DECODE)),
              make_timeline((3.0, RequestPhase.PREFILL), (5.0, RequestPhase.DECODE), ended_at=6.0)]
    assert measure_overlaps(own, others, 8.0) == {RequestPhase.DECODE: {RequestPhase.PREFILL: 3.0}}


def test_first_of_a_group_and_of_suspects_explain_a_queue() -> None:
    own = make_timeline((0.0, RequestPhase.QUEUE), ended_at=4.0)
    others = [make_timeline((0.0, RequestPhase.STATIC_GROUP), ended_at=1.0),
              make_timeline((2.0, RequestPhase.FAULT_ISOLATION), ended_at=4.0)]
    assert measure_overlaps(own, others, 4.0) == {
        RequestPhase.QUEUE: {RequestPhase.STATIC_GROUP: 1.0, RequestPhase.FAULT_ISOLATION: 2.0}}


def test_requests_of_another_time_explain_nothing() -> None:
    own = make_timeline((5.0, RequestPhase.DECODE), ended_at=6.0)
    others = [make_timeline((1.0, RequestPhase.PREFILL), ended_at=5.0), make_timeline((6.0, RequestPhase.PREFILL))]
    assert measure_overlaps(own, others, 9.0) == {}


def test_requests_that_generate_at_the_same_time_are_counted_by_how_long_they_do() -> None:
    own = make_timeline((0.0, RequestPhase.PREFILL), (2.0, RequestPhase.DECODE), ended_at=10.0)
    others = [make_timeline((0.0, RequestPhase.DECODE)),
              make_timeline((1.0, RequestPhase.PREFILL), (8.0, RequestPhase.DECODE)),
              make_timeline((3.0, RequestPhase.DECODE), (5.0, RequestPhase.PREEMPTED), (7.0, RequestPhase.DECODE),
                            ended_at=9.0)]
    assert measure_mean_other_decodes(own, others, 20.0) == (8.0 + 2.0 + 4.0) / 8.0
    assert measure_mean_other_decodes(make_timeline((0.0, RequestPhase.QUEUE)), others, 20.0) == 0.0


def test_prefill_of_another_request_counts_as_long_as_this_one_lives() -> None:
    own = make_timeline((2.0, RequestPhase.QUEUE), (4.0, RequestPhase.DECODE), ended_at=8.0)
    other = make_timeline((0.0, RequestPhase.PREFILL), (3.0, RequestPhase.PREEMPTED), (6.0, RequestPhase.PREFILL))
    assert sum_prefill_overlap_seconds(own, other, 20.0) == 1.0 + 2.0


@given(INTERVALS, INTERVALS)
def test_overlap_equals_the_number_of_common_moments(first: list[tuple[int, int]],
                                                     second: list[tuple[int, int]]) -> None:
    merged = merge_intervals(first), merge_intervals(second)
    for intervals in merged:
        assert all(before[1] < after[0] for before, after in pairwise(intervals))
    moments = [{moment for start, end in intervals for moment in range(start, end)} for intervals in (first, second)]
    assert sum_overlap(*merged) == len(moments[0] & moments[1])
