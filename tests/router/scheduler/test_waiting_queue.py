"""Tests of router/scheduler/waiting_queue.py."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.request import DEFAULT_TENANT, Request
from router.scheduler.sequence import SECONDS_PER_PRIORITY_LEVEL, Sequence
from router.scheduler.waiting_queue import QueueDemand, WaitingQueue


def make_sequence(number, arrival=0.0, priority=0):
    return Sequence(Request(str(number), (1,), 1, priority=priority), number, arrival)


def get_sequence_ids(queue):
    return [sequence.id for sequence in queue]


def test_earlier_arrival_goes_first():
    queue = WaitingQueue()
    for number, arrival in ((1, 2.0), (2, 1.0), (3, 3.0)):
        queue.push(make_sequence(number, arrival))
    assert get_sequence_ids(queue) == [2, 1, 3]


def test_priority_level_is_worth_some_seconds_of_waiting():
    queue = WaitingQueue()
    queue.push(make_sequence(1, arrival=0.0))
    queue.push(make_sequence(2, arrival=SECONDS_PER_PRIORITY_LEVEL - 1, priority=1))
    queue.push(make_sequence(3, arrival=SECONDS_PER_PRIORITY_LEVEL + 1, priority=1))
    assert get_sequence_ids(queue) == [2, 1, 3]


def test_requeued_sequence_keeps_its_place():
    queue = WaitingQueue()
    early = make_sequence(1, arrival=0.0)
    queue.push(make_sequence(2, arrival=1.0))
    queue.push(early)
    assert get_sequence_ids(queue) == [1, 2]


def test_suspended_sequence_is_listed_last_and_is_no_demand():
    queue, held = WaitingQueue(), make_sequence(1)
    held.is_suspended = True
    for sequence in (held, make_sequence(2)):
        queue.push(sequence)
    assert (get_sequence_ids(queue), len(queue)) == ([2, 1], 2)
    assert (queue.demand, queue.tenants) == (QueueDemand(1, 1), [DEFAULT_TENANT.name])
    assert [sequence.id for sequence in queue.get_runnable_sequences(DEFAULT_TENANT.name)] == [2]
    queue.remove(held)
    assert (get_sequence_ids(queue), len(queue)) == ([2], 1)


class QueueMachine(RuleBasedStateMachine):
    """Queue against a model: a list that is sorted for every comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue()
        self.model: list[Sequence] = []

    @rule(arrival=st.integers(0, 30), priority=st.integers(-2, 2))
    def push(self, arrival, priority):
        sequence = make_sequence(len(self.model) + 1000 * arrival, float(arrival), priority)
        self.model.append(sequence)
        self.queue.push(sequence)

    @precondition(lambda self: self.model)
    @rule(choice=st.integers(0, 1000))
    def remove(self, choice):
        self.queue.remove(self.model.pop(choice % len(self.model)))

    @invariant()
    def best_first_and_nobody_lost(self):
        assert list(self.queue) == sorted(self.model, key=lambda sequence: sequence.priority_key)
        assert len(self.queue) == len(self.model)


TestWaitingQueueMachine = QueueMachine.TestCase
TestWaitingQueueMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
