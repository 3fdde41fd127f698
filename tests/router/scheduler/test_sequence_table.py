"""Tests of router/scheduler/sequence_table.py."""

from router.request import Request
from router.scheduler.sequence import Sequence, SequenceState
from router.scheduler.sequence_table import DeadlineHeap


def make_sequence(number: int, timeout: float | None) -> Sequence:
    return Sequence(Request(str(number), (1,), 1, timeout=timeout), number, 10.0)


def test_earliest_deadline_comes_first_and_each_once() -> None:
    deadlines, sequences = DeadlineHeap(), [make_sequence(1, 5.0), make_sequence(2, None), make_sequence(3, 2.0)]
    for sequence in sequences:
        deadlines.add(sequence)
    assert deadlines.earliest_deadline() == 12.0
    assert [sequence.id for sequence in deadlines.pop_expired(20.0)] == [3, 1]
    assert deadlines.pop_expired(30.0) == []
    assert deadlines.earliest_deadline() is None


def test_requeued_sequence_expires_again_and_duplicates_expire_once() -> None:
    deadlines, first, second = DeadlineHeap(), make_sequence(1, 2.0), make_sequence(2, 5.0)
    deadlines.add(first)
    deadlines.add(second)
    assert deadlines.pop_expired(13.0) == [first]
    for sequence in (first, second):
        deadlines.add(sequence)
    assert deadlines.pop_expired(20.0) == [first, second]
    assert deadlines.earliest_deadline() is None


def test_finished_sequence_has_no_deadline() -> None:
    deadlines, sequence = DeadlineHeap(), make_sequence(1, 5.0)
    deadlines.add(sequence)
    sequence.state = SequenceState.FINISHED
    deadlines.discard_finished()
    assert deadlines.earliest_deadline() is None
    assert deadlines.pop_expired(20.0) == []


def test_reading_the_earliest_deadline_has_no_side_effects() -> None:
    """`earliest_deadline` is not recorded: with a side effect, the core of a replay would differ."""
    deadlines, first, second = DeadlineHeap(), make_sequence(1, 2.0), make_sequence(2, 5.0)
    for sequence in (first, second):
        deadlines.add(sequence)
    before = list(deadlines._heap)
    first.state = SequenceState.FINISHED
    deadlines.earliest_deadline()
    assert deadlines._heap == before
