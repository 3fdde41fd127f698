"""Tests of Batch in router/scheduler/running_sequences.py."""

from router.request import Request
from router.scheduler.messages import Filter
from router.scheduler.running_sequences import Batch
from router.scheduler.sequence import Sequence


def make_sequence(number):
    return Sequence(Request(str(number), (1,), 1), number, 0.0)


def make_batch(number, *members):
    batch = Batch(number)
    for sequence in members:
        batch.add(sequence)
    return batch


def test_removed_sequence_causes_one_filter():
    first, second = make_sequence(1), make_sequence(2)
    batch = make_batch(7, first, second)
    batch.remove(first)
    assert batch.needs_filter
    assert batch.take_filter() == Filter(7, (2,))
    assert not batch.needs_filter


def test_removing_the_last_sequence_filters_all():
    sequence = make_sequence(1)
    batch = make_batch(7, sequence)
    batch.remove(sequence)
    assert batch.take_filter() == Filter(7, ())


def test_absorbing_a_batch_keeps_the_order():
    batch = make_batch(1, make_sequence(1), make_sequence(2))
    batch.absorb(make_batch(2, make_sequence(3)))
    assert [sequence.id for sequence in batch] == [1, 2, 3]
