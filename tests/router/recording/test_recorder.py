"""Recorder of the core: the notes of each call, and how long they are kept."""

from dataclasses import replace

import pytest
from support.recordings import FACTS

from router.recording.recorder import MOST_SEGMENTS, Recorder, new_core
from router.recording.snapshot import restore
from router.request import Request
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, AnswerRow
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy


def recorder(seconds=60.0, **facts):
    core = Recorder(Policy(), replace(FACTS, **facts), seconds, 0.0)
    core.shards_ready(replace(FACTS, **facts), 1, 0.0)
    return core


def notes(core):
    return [note for segment in core.segments() for note in segment.notes if not isinstance(note, float)]


def answer(core, now, tokens=(7,), stopped=None, failed=None):
    plan = core.plan(now)
    rows = {number: AnswerRow(tokens, (0.0,) * len(tokens)) for number in plan.expects if number not in (failed or {})}
    return core.complete(plan.order, Answer(1, 0.1, rows, failed or {}), stopped or {}, now)


def test_it_decides_what_a_core_decides():
    core, plain = recorder(), Scheduler(Policy(), FACTS)
    plain.shards_ready(FACTS, 1, 0.0)
    for one in (core, plain):
        one.submit(Request("a", (7,) * 20, 3), 0.0)
    assert core.plan(1.0) == plain.plan(1.0)


def test_a_core_is_recorded_unless_nothing_is_to_be_kept():
    assert type(new_core(Policy(), FACTS, 60.0, 0.0)) is Recorder
    assert type(new_core(Policy(), FACTS, 0.0, 0.0)) is Scheduler


def test_every_call_is_noted_with_its_outcome():
    core = recorder()
    core.submit(Request("a", (7,) * 20, 3), 1.0)
    core.hold(1, 1.5)
    core.resume(1, 1.6)
    answer(core, 2.0)
    core.cancel(1, 3.0)
    core.expire(4.0)
    core.shards_lost(5.0, Loss.DEFECT)
    assert [note[0] for note in notes(core)] == [
        "shards_ready", "submit", "hold", "resume", "plan", "complete", "cancel", "expire", "shards_lost"]
    assert notes(core)[1][3] == (("Entered", 1),)
    assert notes(core)[5][1:4] == (2.0, (1, 1, 0.1), ())


def test_a_plan_that_comes_to_nothing_is_a_time():
    core = recorder()
    core.plan(0.5)
    assert core.segments()[0].notes[-1] == 0.5


def test_of_an_answer_only_what_is_out_of_the_ordinary_is_noted():
    core = recorder(tokens_per_step=3)
    for number in range(4):
        core.submit(Request(f"{number}", (7,) * 20, 30, end_tokens=frozenset({9})), 1.0)
    answer(core, 2.0, (7, 9, 7), stopped={2: 1}, failed={3: "why"})
    call, _, given, outcome, _ = notes(core)[-1]
    lengths, ended, stopped, failed = given[3:]
    assert call == "complete"
    assert (lengths, ended) == (((1, 3), (2, 3), (4, 3)), ((1, 1), (4, 1)))
    assert (stopped, failed) == (((2, 1),), ((3, "why"),))
    assert ("Failed", 3, "why") in outcome


def test_names_of_blocks_stand_with_the_call_that_named_them():
    """Blocks of generated tokens are named when their sequence ends."""
    core = recorder()
    core.submit(Request("a", (7,) * 15, 18, namespace=b"those who share"), 1.0)
    for second in range(18):
        answer(core, 2.0 + second)
    named = [note[4] for note in notes(core) if note[0] == "complete"]
    assert [len(names) for names in named] == [0] * 17 + [2]
    assert {len(name) for name in named[-1]} == {16}


def test_a_crash_is_noted_and_goes_on():
    core = recorder()
    core.submit(Request("a", (7,) * 20, 3), 1.0)
    plan = core.plan(2.0)
    with pytest.raises(KeyError):
        core.complete(plan.order, Answer(1, 0.1, {}, {}), {}, 3.0)
    assert notes(core)[-1] == ("crash", 3.0, ("complete", 1, 1, 0.1), ("KeyError(1)",), ())


def test_segments_begin_every_half_minute_with_the_core_as_it_stood():
    core = recorder(seconds=300.0)
    core.submit(Request("a", (7,) * 20, 3), 1.0)
    core.plan(29.0)
    core.plan(31.0)
    core.plan(70.0)
    segments = core.segments()
    assert [segment.began for segment in segments] == [0.0, 31.0, 70.0]
    assert [restore(segment.snapshot).num_unfinished for segment in segments] == [0, 1, 1]
    assert restore(segments[1].snapshot).num_in_flight == 1


def test_a_segment_leaves_when_the_next_one_is_old_enough():
    core = recorder(seconds=60.0)
    for time in range(0, 200, 10):
        core.plan(float(time))
    assert core.segments()[0].began == 90.0


def test_many_events_make_short_segments_of_which_there_are_only_so_many(monkeypatch):
    monkeypatch.setattr("router.recording.recorder.MOST_EVENTS", 10)
    core = recorder(seconds=300.0)
    for time in range(1000):
        core.plan(time / 1000)
    assert len(core.segments()) == MOST_SEGMENTS
    assert max(len(segment.notes) for segment in core.segments()) <= 10


def test_what_was_copied_does_not_grow():
    core = recorder()
    segments = core.segments()
    core.plan(1.0)
    assert len(segments[0].notes) == 1
