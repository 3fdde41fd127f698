"""Tests of RequestTimeline in router/scheduler/sequence.py."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.scheduler.sequence import MAX_INTERVALS, RequestPhase, RequestTimeline

phase_changes = st.lists(st.tuples(st.floats(0, 10), st.sampled_from(RequestPhase)), max_size=30)


@given(phase_changes)
def test_intervals_leave_no_gap_and_sum_to_the_whole_time(phase_changes: list[tuple[float, RequestPhase]]) -> None:
    timeline, now = RequestTimeline(5.0), 5.0
    for seconds, phase in phase_changes:
        now += seconds
        timeline.enter_phase(phase, now)
    timeline.end(now + 1.0)
    intervals = timeline.intervals(1e9)
    assert [start for _, start, _ in intervals] == [5.0, *(end for _, _, end in intervals[:-1])]
    assert intervals[-1][2] == now + 1.0
    assert abs(sum(timeline.seconds_by_phase(1e9).values()) - (now - 4.0)) < 1e-9
    assert all(one[0] is not other[0] for one, other in pairwise(intervals))


def test_unfinished_timeline_extends_to_now() -> None:
    timeline = RequestTimeline(1.0)
    timeline.enter_phase(RequestPhase.PREFILL, 2.0)
    assert timeline.intervals(5.0) == [(RequestPhase.QUEUE, 1.0, 2.0), (RequestPhase.PREFILL, 2.0, 5.0)]


def test_timeline_ignores_changes_after_the_end() -> None:
    timeline = RequestTimeline(1.0)
    timeline.end(2.0)
    timeline.enter_phase(RequestPhase.DECODE, 3.0)
    timeline.end(4.0)
    assert timeline.intervals(5.0) == [(RequestPhase.QUEUE, 1.0, 2.0)]


def test_intervals_of_an_endless_wait_are_bounded_but_running_is_kept() -> None:
    timeline = RequestTimeline(0.0)
    for second in range(2 * MAX_INTERVALS):
        timeline.enter_phase((RequestPhase.NO_FREE_BLOCKS, RequestPhase.BATCH_FULL)[second % 2], float(second + 1))
    timeline.enter_phase(RequestPhase.PREFILL, 1e6)
    assert len(timeline.intervals(1e6)) == MAX_INTERVALS + 1
    assert timeline.phase is RequestPhase.PREFILL


def test_timeline_knows_whether_it_started_and_how_often_it_was_preempted() -> None:
    timeline = RequestTimeline(0.0)
    assert (timeline.has_started, timeline.num_preemptions) == (False, 0)
    for second, phase in enumerate((RequestPhase.PREFILL, RequestPhase.PREEMPTED, RequestPhase.NO_FREE_BLOCKS,
                                    RequestPhase.PREFILL, RequestPhase.SLOW_CLIENT)):
        timeline.enter_phase(phase, float(second + 1))
    assert (timeline.has_started, timeline.num_preemptions) == (True, 1)


def test_preemptions_are_counted_in_an_endless_wait() -> None:
    timeline = RequestTimeline(0.0)
    for second in range(4 * MAX_INTERVALS):
        timeline.enter_phase((RequestPhase.PREFILL, RequestPhase.PREEMPTED, RequestPhase.NO_FREE_BLOCKS,
                              RequestPhase.BATCH_FULL)[second % 4], float(second + 1))
    assert timeline.num_preemptions == MAX_INTERVALS
