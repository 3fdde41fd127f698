"""Tests of router/scheduler/timeline.py."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.scheduler.timeline import MOST_TURNS, Cause, Story

turns = st.lists(st.tuples(st.floats(0, 10), st.sampled_from(Cause)), max_size=30)


@given(turns)
def test_intervals_leave_no_gap_and_sum_to_the_whole(turns: list[tuple[float, Cause]]) -> None:
    story, now = Story(5.0), 5.0
    for seconds, cause in turns:
        now += seconds
        story.turn(cause, now)
    story.end(now + 1.0)
    intervals = story.intervals(1e9)
    assert [start for _, start, _ in intervals] == [5.0, *(end for _, _, end in intervals[:-1])]
    assert intervals[-1][2] == now + 1.0
    assert abs(sum(story.seconds(1e9).values()) - (now - 4.0)) < 1e-9
    assert all(one[0] is not other[0] for one, other in pairwise(intervals))


def test_a_story_that_goes_on_is_told_up_to_now() -> None:
    story = Story(1.0)
    story.turn(Cause.PREFILL, 2.0)
    assert story.intervals(5.0) == [(Cause.QUEUE, 1.0, 2.0), (Cause.PREFILL, 2.0, 5.0)]


def test_nothing_happens_after_the_end() -> None:
    story = Story(1.0)
    story.end(2.0)
    story.turn(Cause.DECODE, 3.0)
    story.end(4.0)
    assert story.intervals(5.0) == [(Cause.QUEUE, 1.0, 2.0)]


def test_causes_of_an_endless_wait_are_not_kept_for_ever_but_running_is() -> None:
    story = Story(0.0)
    for second in range(2 * MOST_TURNS):
        story.turn((Cause.BLOCKS, Cause.BATCH)[second % 2], float(second + 1))
    story.turn(Cause.PREFILL, 1e6)
    assert len(story.intervals(1e6)) == MOST_TURNS + 1
    assert story.cause is Cause.PREFILL


def test_a_story_knows_whether_it_ever_started_and_how_often_it_yielded() -> None:
    story = Story(0.0)
    assert (story.has_started, story.num_yields) == (False, 0)
    for second, cause in enumerate((Cause.PREFILL, Cause.YIELDED, Cause.BLOCKS, Cause.PREFILL, Cause.READER)):
        story.turn(cause, float(second + 1))
    assert (story.has_started, story.num_yields) == (True, 1)


def test_no_yield_is_lost_in_an_endless_wait() -> None:
    story = Story(0.0)
    for second in range(4 * MOST_TURNS):
        story.turn((Cause.PREFILL, Cause.YIELDED, Cause.BLOCKS, Cause.BATCH)[second % 4], float(second + 1))
    assert story.num_yields == MOST_TURNS
