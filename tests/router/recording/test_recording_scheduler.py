"""Tests of the recording scheduler: the notes of each call, the form of its decisions, and how long they are kept."""

import json
from dataclasses import replace
from inspect import signature

import pytest
from support.scheduling.recordings import SMALL_MODEL_INFO

from router.recording.recording_scheduler import (
    MAX_SEGMENTS,
    RECORDED_CALLS,
    RecordingScheduler,
    make_optionally_recorded_scheduler,
    summarize_events,
    summarize_plan,
)
from router.recording.scheduler_snapshot import restore_scheduler, table_to_json
from router.request import FinishReason, Request, RequestKind
from router.scheduler.events import SequenceFailed, SequenceFinished, TokensGenerated
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import (
    BlockGrant,
    Concat,
    Decode,
    Filter,
    NewSequence,
    PoolingStep,
    Prefill,
    PrefillChunk,
    StepPlan,
    StepResult,
    StepResultRow,
)


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
    for seconds, expected_class in ((60.0, RecordingScheduler), (0.0, Scheduler)):
        scheduler = make_optionally_recorded_scheduler(SchedulerSettings(), SMALL_MODEL_INFO, seconds, 0.0)
        assert type(scheduler) is expected_class


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
    restored = [restore_scheduler(json.loads(table_to_json(segment.snapshot))) for segment in segments]
    assert [core.num_unfinished for core in restored] == [0, 1, 1]
    assert len(restored[1]._unanswered_plans) == 1


def test_segment_is_dropped_when_the_next_one_is_old_enough():
    core = make_recorder(seconds=60.0)
    for time in range(0, 200, 10):
        core.plan(float(time))
    assert core.copy_segments()[0].started_at == 90.0


def test_many_events_make_short_segments_of_bounded_number(monkeypatch):
    monkeypatch.setattr("router.recording.recording_scheduler.MAX_SEGMENT_CALLS", 10)
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


# -- summaries of decisions

DECODE_PLAN = StepPlan(1, 5, (Decode(1, (BlockGrant(3, (8,)),), (3, 4)),), (3, 4), (3, 4), 0.1)
NEW_SEQUENCE = NewSequence(5, Request("a", (1, 2, 3), 4), (9,), (6, 7), 0)
MIXED_PLAN = StepPlan(1, 8, (Filter(2, ()), Concat((1, 2)),
                             Prefill(1, (NEW_SEQUENCE,), (PrefillChunk(5, 0, 2),), True)), (3, 5), (3,), 0.1)


def plan_digest(plan):
    return summarize_plan(plan)[1]


def test_plan_summary_counts_decodes_new_sequences_and_tokens():
    assert summarize_plan(DECODE_PLAN)[::2] == (5, 2, 0)
    order, _, decodes, newcomers, tokens = summarize_plan(MIXED_PLAN)
    assert (order, decodes, newcomers, tokens) == (8, 1, 1, 2)


def test_plan_digest_is_the_same_on_every_machine():
    assert (plan_digest(DECODE_PLAN), plan_digest(MIXED_PLAN)) == ("235ab5c10b76c51a", "8eb7310155dcc08b")


def test_predicted_seconds_do_not_change_the_digest():
    assert plan_digest(replace(DECODE_PLAN, predicted_seconds=0.2)) == plan_digest(DECODE_PLAN)


def test_every_change_of_a_plan_changes_the_digest():
    step = DECODE_PLAN.messages[0]
    prefill = MIXED_PLAN.messages[-1]
    decodes = [replace(step, batch=2), replace(step, grants=()), replace(step, keep=None)]
    others = [replace(DECODE_PLAN, last_message_number=6), replace(DECODE_PLAN, member_ids=(4, 3)),
              replace(DECODE_PLAN, output_ids=(3,)), replace(DECODE_PLAN, messages=(Filter(1, ()), step))]
    others += [replace(DECODE_PLAN, messages=(other,)) for other in decodes]
    newcomers = [replace(NEW_SEQUENCE, blocks=(7, 6)), replace(NEW_SEQUENCE, num_cached_tokens=16),
                 replace(NEW_SEQUENCE, sequence_id=6)]
    steps = [replace(prefill, new_sequences=(one,)) for one in newcomers] + [replace(prefill, includes_decodes=False)]
    others += [replace(MIXED_PLAN, messages=(*MIXED_PLAN.messages[:-1], other)) for other in steps]
    assert len({plan_digest(plan) for plan in (DECODE_PLAN, MIXED_PLAN, *others)}) == len(others) + 2


def test_tokens_do_not_change_the_digest():
    new_sequence = replace(NEW_SEQUENCE, generated=(8,), request=Request("b", (4, 5), 6))
    step = replace(MIXED_PLAN.messages[-1], new_sequences=(new_sequence,))
    assert plan_digest(replace(MIXED_PLAN, messages=(*MIXED_PLAN.messages[:-1], step))) == plan_digest(MIXED_PLAN)


def test_events_are_recorded_without_tokens():
    events = [TokensGenerated({1: 1, 2: 1}), SequenceFinished(1, FinishReason.LENGTH), SequenceFailed(2, "why")]
    assert summarize_events(events) == (("SequenceFinished", 1, "length"), ("SequenceFailed", 2, "why"))
    assert summarize_events(events[:1]) == ()


def test_pooling_plan_is_recorded_with_its_request_kind():
    newcomer = NewSequence(5, Request("a", (1, 2, 3), 0, kind=RequestKind.EMBED), (), ())
    plan = StepPlan(1, 8, (PoolingStep(RequestKind.EMBED, (newcomer,)),), (5,), (5,), 0.1)
    order, _, decodes, newcomers, tokens = summarize_plan(plan)
    assert (order, decodes, newcomers, tokens) == (8, 0, 1, 3)
    assert plan_digest(plan) != plan_digest(replace(plan, messages=(PoolingStep(RequestKind.CLASSIFY, (newcomer,)),)))
