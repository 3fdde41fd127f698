"""Lanes of the batch, by the messages of plans."""

from router.monitor.batch_lanes import BatchLanes
from router.request import Request, RequestKind
from router.scheduler.shard_messages import (
    Concat,
    Decode,
    Filter,
    NewSequence,
    PoolingStep,
    Prefill,
    PrefillChunk,
    StepPlan,
)


def make_plan(*messages):
    return StepPlan(1, 1, messages, (), (), 0.0)


def make_prefill(*numbers, batch=1, keep=None):
    newcomers = tuple(NewSequence(number, Request(f"{number}", (1,), 5), (), ()) for number in numbers)
    return Prefill(batch, newcomers, tuple(PrefillChunk(number, 0, 1) for number in numbers), False, (), keep)


def test_lowest_free_lane_is_taken():
    lanes = BatchLanes()
    assert lanes.apply(make_plan(make_prefill(1, 2, 3))).entered == [(0, 1), (1, 2), (2, 3)]
    assert lanes.apply(make_plan(Decode(1, (), (3,)))).left == [(0, 1), (1, 2)]
    assert lanes.apply(make_plan(make_prefill(4))).entered == [(0, 4)]
    assert lanes.lane_by_id == {3: 2, 4: 0}
    assert len(lanes) == 2


def test_lane_that_is_freed_is_taken_in_the_same_step():
    lanes = BatchLanes()
    lanes.apply(make_plan(make_prefill(1, 2)))
    changes = lanes.apply(make_plan(make_prefill(3, keep=(2,))))
    assert (changes.left, changes.entered) == ([(0, 1)], [(0, 3)])


def test_filter_removes_from_its_own_batch_only():
    lanes = BatchLanes()
    lanes.apply(make_plan(make_prefill(1)))
    lanes.apply(make_plan(make_prefill(2, batch=2)))
    assert lanes.apply(make_plan(Filter(2, ()))).left == [(1, 2)]


def test_joined_batches_are_filtered_as_one():
    lanes = BatchLanes()
    lanes.apply(make_plan(make_prefill(1)))
    lanes.apply(make_plan(make_prefill(2, batch=2)))
    assert lanes.apply(make_plan(Concat((1, 2)), Filter(1, (1,)))).left == [(1, 2)]


def test_sequence_that_returns_in_the_same_plan_keeps_its_lane():
    lanes = BatchLanes()
    lanes.apply(make_plan(make_prefill(1, 2)))
    changes = lanes.apply(make_plan(Filter(1, ()), make_prefill(2, 1, batch=2)))
    assert (changes.left, changes.entered) == ([], [])
    assert lanes.lane_by_id == {1: 0, 2: 1}


def test_pooled_texts_have_lanes_for_one_step():
    lanes = BatchLanes()
    step = PoolingStep(RequestKind.EMBED, make_prefill(1, 2).new_sequences)
    assert lanes.apply(make_plan(step)).entered == [(0, 1), (1, 2)]
    changes = lanes.apply(make_plan(make_prefill(3)))
    assert (changes.left, changes.entered) == ([(0, 1), (1, 2)], [(0, 3)])


def test_reset_frees_every_lane():
    lanes = BatchLanes()
    lanes.apply(make_plan(make_prefill(1, 2)))
    lanes.reset()
    assert lanes.apply(make_plan(make_prefill(2))).entered == [(0, 2)]
