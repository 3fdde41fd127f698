from router.request import Request
from router.scheduler.batch import Batch
from router.scheduler.plan import Filter
from router.scheduler.sequence import Sequence


def member(number):
    return Sequence(Request(str(number), (1,), 1), number, 0.0)


def batch_of(number, *members):
    batch = Batch(number)
    for sequence in members:
        batch.add(sequence)
    return batch


def test_leaving_owes_the_shards_a_filter_once():
    one, two = member(1), member(2)
    batch = batch_of(7, one, two)
    batch.remove(one)
    assert batch.owed_filter() == Filter(7, (2,))
    assert batch.owed_filter() is None


def test_when_the_last_one_leaves_nothing_is_kept():
    one = member(1)
    batch = batch_of(7, one)
    batch.remove(one)
    assert batch.owed_filter() == Filter(7, ())


def test_absorbing_keeps_everybody_in_order():
    batch = batch_of(1, member(1), member(2))
    batch.absorb(batch_of(2, member(3)))
    assert [sequence.number for sequence in batch] == [1, 2, 3]
