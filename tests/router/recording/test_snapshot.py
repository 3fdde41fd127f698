"""Snapshots of the core, without tokens."""

from itertools import count

from support.recordings import FACTS

from router.recording.snapshot import next_of, restore, take
from router.request import Request
from router.scheduler.plan import Answer, AnswerRow
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy


def busy_core():
    core = Scheduler(Policy(max_batch_size=2), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    for number in range(4):
        core.submit(Request(f"{number}", (7000 + number,) * 20, 30, stop_strings=("stop",)), 0.0)
    for step in range(5):
        plan = core.plan(float(step))
        core.complete(plan.order, Answer(1, 0.1, {n: AnswerRow((9000,), (0.0,)) for n in plan.expects}, {}), {}, step)
    return core


def test_a_restored_core_decides_the_same():
    core = busy_core()
    again = restore(take(core))
    for step in range(5, 60):
        plan, other = core.plan(float(step)), again.plan(float(step))
        assert (plan.order, plan.members, len(plan.messages)) == (other.order, other.members, len(other.messages))
        answer = Answer(1, 0.1, {n: AnswerRow((9000,), (0.0,)) for n in plan.expects}, {})
        assert core.complete(plan.order, answer, {}, step) == again.complete(plan.order, answer, {}, step)
        if not core.num_unfinished:
            break
    assert not again.num_unfinished


def test_tokens_are_left_out_and_their_numbers_kept():
    snapshot = take(busy_core())
    sequences = list(restore(snapshot).sequences)
    assert {token for sequence in sequences for token in (*sequence.request.prompt, *sequence.generated)} == {0}
    assert [len(sequence.request.prompt) for sequence in sequences] == [20] * 4
    assert [len(sequence.generated) for sequence in sequences] == [5, 5, 0, 0]
    assert b"stop" not in snapshot.data


def test_what_happens_later_does_not_change_a_snapshot():
    core = busy_core()
    snapshot = take(core)
    core.cancel(1, 9.0)
    assert restore(snapshot).num_unfinished == 4


def test_looking_at_a_counter_does_not_move_it():
    counter = count(5)
    assert (next_of(counter), next(counter)) == (5, 5)
