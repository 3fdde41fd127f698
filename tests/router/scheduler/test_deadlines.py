"""Tests of router/scheduler/deadlines.py."""

from router.request import Request
from router.scheduler.deadlines import Deadlines
from router.scheduler.sequence import Sequence, State


def sequence(number: int, timeout: float | None) -> Sequence:
    return Sequence(Request(str(number), (1,), 1, timeout=timeout), number, 10.0)


def test_the_earliest_comes_first_and_each_once() -> None:
    deadlines, everyone = Deadlines(), [sequence(1, 5.0), sequence(2, None), sequence(3, 2.0)]
    for one in everyone:
        deadlines.add(one)
    assert deadlines.next() == 12.0
    assert [one.number for one in deadlines.due(20.0)] == [3, 1]
    assert deadlines.due(30.0) == []
    assert deadlines.next() is None


def test_who_was_named_and_waits_again_is_named_again_and_who_was_not_only_once() -> None:
    deadlines, named, other = Deadlines(), sequence(1, 2.0), sequence(2, 5.0)
    deadlines.add(named)
    deadlines.add(other)
    assert deadlines.due(13.0) == [named]
    for one in (named, other):
        deadlines.add(one)
    assert deadlines.due(20.0) == [named, other]
    assert deadlines.next() is None


def test_what_is_over_has_no_deadline() -> None:
    deadlines, one = Deadlines(), sequence(1, 5.0)
    deadlines.add(one)
    one.state = State.OVER
    deadlines.forget_ended()
    assert deadlines.next() is None
    assert deadlines.due(20.0) == []


def test_to_look_changes_nothing() -> None:
    """`next` is not recorded: with a side effect, the core of a replay would differ."""
    deadlines, first, second = Deadlines(), sequence(1, 2.0), sequence(2, 5.0)
    for one in (first, second):
        deadlines.add(one)
    before = list(deadlines._heap)
    first.state = State.OVER
    deadlines.next()
    assert deadlines._heap == before
