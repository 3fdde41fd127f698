"""Snapshots of the core, without tokens."""

from itertools import count

from support.scheduling.recordings import SMALL_MODEL_INFO

from router.recording.snapshot import peek_counter, restore_scheduler, take_snapshot
from router.request import Request
from router.scheduler.messages import StepResult, StepResultRow
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings


def make_busy_scheduler():
    core = Scheduler(SchedulerSettings(max_batch_size=2), SMALL_MODEL_INFO)
    core.on_shards_ready(SMALL_MODEL_INFO, 1, 0.0)
    for number in range(4):
        core.submit(Request(f"{number}", (7000 + number,) * 20, 30, stop_strings=("stop",)), 0.0)
    for step in range(5):
        plan = core.plan(float(step))
        core.complete_step(plan.last_message_number,
                           StepResult(1, 0.1, {n: StepResultRow((9000,), (0.0,)) for n in plan.output_ids},
                      {}), {}, step)
    return core


def test_restored_scheduler_decides_the_same():
    core = make_busy_scheduler()
    restored = restore_scheduler(take_snapshot(core))
    for step in range(5, 60):
        plan, replanned = core.plan(float(step)), restored.plan(float(step))
        assert (plan.last_message_number, plan.member_ids,
                len(plan.messages)) == (replanned.last_message_number, replanned.member_ids, len(replanned.messages))
        answer = StepResult(1, 0.1, {n: StepResultRow((9000,), (0.0,)) for n in plan.output_ids}, {})
        assert core.complete_step(plan.last_message_number, answer, {},
                                  step) == restored.complete_step(plan.last_message_number, answer, {}, step)
        if not core.num_unfinished:
            break
    assert not restored.num_unfinished


def test_snapshot_keeps_token_counts_but_no_tokens():
    snapshot = take_snapshot(make_busy_scheduler())
    sequences = list(restore_scheduler(snapshot).sequences)
    assert {token for sequence in sequences for token in (*sequence.request.prompt, *sequence.generated)} == {0}
    assert [len(sequence.request.prompt) for sequence in sequences] == [20] * 4
    assert [len(sequence.generated) for sequence in sequences] == [5, 5, 0, 0]
    assert b"stop" not in snapshot.pickled


def test_later_calls_do_not_change_a_snapshot():
    core = make_busy_scheduler()
    snapshot = take_snapshot(core)
    core.cancel(1, 9.0)
    assert restore_scheduler(snapshot).num_unfinished == 4


def test_peeking_at_a_counter_does_not_advance_it():
    counter = count(5)
    assert (peek_counter(counter), next(counter)) == (5, 5)
