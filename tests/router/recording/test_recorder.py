"""Recorder of the core: the notes of each call, and how long they are kept."""

from dataclasses import replace
from inspect import signature

import pytest
from support.scheduling.recordings import SMALL_MODEL_INFO

from router.recording.recorder import MAX_SEGMENTS, RECORDED_CALLS, RecordingScheduler, make_scheduler
from router.recording.state import restore_scheduler
from router.request import Request
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.messages import StepResult, StepResultRow
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings


def make_recorder(seconds=60.0, **model_info_overrides):
    core = RecordingScheduler(SchedulerSettings(), replace(SMALL_MODEL_INFO, **model_info_overrides), seconds, 0.0)
    core.on_shards_ready(replace(SMALL_MODEL_INFO, **model_info_overrides), 1, 0.0)
    return core


def get_notes(core):
    return [note for segment in core.copy_segments() for note in segment.entries if not isinstance(note, float)]


def plan_and_complete(core, now, tokens=(7,), stopped=None, failed=None):
    plan = core.plan(now)
    rows = {number: StepResultRow(tokens, (0.0,) * len(tokens)) for number in plan.output_ids
            if number not in (failed or {})}
    return core.complete_step(plan.last_message_number, StepResult(1, 0.1, rows, failed or {}), stopped or {}, now)


def test_recorder_decides_like_a_scheduler():
    core, plain = make_recorder(), Scheduler(SchedulerSettings(), SMALL_MODEL_INFO)
    plain.on_shards_ready(SMALL_MODEL_INFO, 1, 0.0)
    for scheduler in (core, plain):
        scheduler.submit(Request("a", (7,) * 20, 3), 0.0)
    assert core.plan(1.0) == plain.plan(1.0)


def test_recording_is_disabled_with_zero_seconds():
    assert type(make_scheduler(SchedulerSettings(), SMALL_MODEL_INFO, 60.0, 0.0)) is RecordingScheduler
    assert type(make_scheduler(SchedulerSettings(), SMALL_MODEL_INFO, 0.0, 0.0)) is Scheduler


def test_every_call_is_recorded_with_its_outcome():
    core = make_recorder()
    core.submit(Request("a", (7,) * 20, 3), 1.0)
    core.suspend(1, 1.5)
    core.resume(1, 1.6)
    plan_and_complete(core, 2.0)
    core.cancel(1, 3.0)
    core.on_timer(4.0)
    core.on_shards_lost(ShardLossReason.DEFECT, 5.0)
    assert [note[0] for note in get_notes(core)] == ["on_shards_ready", "submit", "suspend", "resume", "plan",
                                                     "complete_step", "cancel", "on_timer", "on_shards_lost"]
    assert get_notes(core)[1][3] == (("RequestAccepted", 1),)
    assert get_notes(core)[5][1:4] == (2.0, (1, 1, 0.1), ())


def test_every_method_of_the_scheduler_that_takes_the_time_is_recorded():
    timed = {name for name, method in vars(Scheduler).items()
             if callable(method) and not name.startswith("_") and list(signature(method).parameters)[-1:] == ["now"]}
    assert timed == RECORDED_CALLS.keys() | {"plan", "complete_step", "take_resource_commands"}


def test_empty_plan_is_recorded_as_a_time():
    core = make_recorder()
    core.plan(0.5)
    assert core.copy_segments()[0].entries[-1] == 0.5


def test_only_unusual_parts_of_a_result_are_recorded():
    core = make_recorder(tokens_per_step=3)
    for number in range(4):
        core.submit(Request(f"{number}", (7,) * 20, 30, end_tokens=frozenset({9})), 1.0)
    plan_and_complete(core, 2.0, (7, 9, 7), stopped={2: 1}, failed={3: "why"})
    call, _, arguments, outcome, _ = get_notes(core)[-1]
    lengths, ended, stopped, failed = arguments[3:]
    assert call == "complete_step"
    assert (lengths, ended) == (((1, 3), (2, 3), (4, 3)), ((1, 1), (4, 1)))
    assert (stopped, failed) == (((2, 1),), ((3, "why"),))
    assert ("SequenceFailed", 3, "why") in outcome


def test_block_hashes_are_recorded_with_the_call_that_computed_them():
    """Blocks of generated tokens are hashed when their sequence ends."""
    core = make_recorder()
    core.submit(Request("a", (7,) * 15, 18, cache_namespace=b"those who share"), 1.0)
    for second in range(18):
        plan_and_complete(core, 2.0 + second)
    named = [note[4] for note in get_notes(core) if note[0] == "complete_step"]
    assert [len(names) for names in named] == [0] * 17 + [2]
    assert {len(name) for name in named[-1]} == {16}


def test_crash_is_recorded_and_raised():
    core = make_recorder()
    core.submit(Request("a", (7,) * 20, 3), 1.0)
    plan = core.plan(2.0)
    with pytest.raises(KeyError):
        core.complete_step(plan.last_message_number, StepResult(1, 0.1, {}, {}), {}, 3.0)
    assert get_notes(core)[-1] == ("crash", 3.0, ("complete_step", 1, 1, 0.1), ("KeyError(1)",), ())


def test_new_segment_starts_every_half_minute_with_a_snapshot():
    core = make_recorder(seconds=300.0)
    core.submit(Request("a", (7,) * 20, 3), 1.0)
    core.plan(29.0)
    core.plan(31.0)
    core.plan(70.0)
    segments = core.copy_segments()
    assert [segment.started_at for segment in segments] == [0.0, 31.0, 70.0]
    assert [restore_scheduler(segment.snapshot).num_unfinished for segment in segments] == [0, 1, 1]
    assert len(restore_scheduler(segments[1].snapshot)._steps_in_flight) == 1


def test_segment_is_dropped_when_the_next_one_is_old_enough():
    core = make_recorder(seconds=60.0)
    for time in range(0, 200, 10):
        core.plan(float(time))
    assert core.copy_segments()[0].started_at == 90.0


def test_many_events_make_short_segments_of_bounded_number(monkeypatch):
    monkeypatch.setattr("router.recording.recorder.MAX_SEGMENT_CALLS", 10)
    core = make_recorder(seconds=300.0)
    for time in range(1000):
        core.plan(time / 1000)
    assert len(core.copy_segments()) == MAX_SEGMENTS
    assert max(len(segment.entries) for segment in core.copy_segments()) <= 10


def test_copied_segments_do_not_grow():
    core = make_recorder()
    segments = core.copy_segments()
    core.plan(1.0)
    assert len(segments[0].entries) == 1
