"""Snapshots of the scheduler's state, their JSON, and schedulers restored from them."""

import json
from collections import OrderedDict, deque
from dataclasses import fields
from importlib import import_module
from math import inf
from pathlib import Path

import pytest
from support.scheduling.recordings import SMALL_MODEL_INFO
from test_simulation import make_random_world

from router.recording.scheduler_snapshot import (
    KEPT_FIELDS,
    PLACEHOLDER_END_TOKEN,
    STATE_CLASSES,
    STATE_ENUMS,
    StateTableReader,
    StateTableWriter,
    redact_request,
    redacted_request_to_json,
    request_from_json,
    restore_scheduler,
    table_differences,
    table_to_json,
    take_snapshot,
)
from router.request import LoadableResource, Request, RequestKind, Tenant, hash_blocks
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult, StepResultRow

REPOSITORY_ROOT = Path(__file__).parents[3]
# Classes of which the scheduler keeps no object from one call to the next, base classes, and others' reasons.
TRANSIENT_CLASSES = {
    "AdapterStatus", "BlockGrant", "Concat", "Decode", "Filter", "NewSequence", "PoolingStep", "Prefill",
    "PrefillBudget", "PrefillChunk", "PromptLogprobs", "RequestAccepted", "RequestRejected",
    "SequenceExpired", "SequenceFailed", "SequenceFinished", "ShardLossReason", "StepDraft", "StepPlan", "StepPolicy",
    "StepResult", "StepResultRow", "PrefillTimeAllowance", "TokensGenerated"}


def as_json(table):
    return json.loads(table_to_json(table))


def round_trip(value):
    writer = StateTableWriter()
    encoded = writer.encode([value])
    return StateTableReader(as_json(writer.table), hash_blocks).decode(encoded)[0]


@pytest.mark.parametrize("thing", [None, True, 5, "text", "@@1", 0.1, inf, -inf, b"\x00\xff", (1, (2.5, "x")), [1, [2]],
                                   {1: {b"k": (3,)}}, {(1, b"x"): 2}, {1, 2},
                                   frozenset({LoadableResource("adapter", 1)}), deque([1, 2]), SequenceState.PREEMPTED,
                                   Tenant("t", 2.0), {}, [], (), OrderedDict([(2, 1), (1, 2)])], ids=repr)
def test_every_type_of_value_survives_the_round_trip(thing):
    again = round_trip(thing)
    assert again == thing
    assert type(again) is type(thing)


def test_shared_and_cyclic_references_survive_the_round_trip():
    circle = [1]
    circle += [circle, {"a": circle}]
    again = round_trip([circle, circle])
    assert again[0] is again[1]
    assert again[0][1] is again[0][2]["a"] is again[0]


def test_foreign_objects_are_rejected():
    with pytest.raises(TypeError, match=r"the scheduler holds a builtins\.complex"):
        StateTableWriter().encode(1j)


def test_every_class_of_the_scheduler_is_known_to_snapshots():
    """An object of an unknown class in the scheduler's state would make `plan` raise when a segment begins."""
    modules = [import_module(f"router.scheduler.{path.stem}")
               for path in (REPOSITORY_ROOT / "router" / "scheduler").glob("*.py") if path.stem != "__init__"]
    defined = {name for module in modules for name, thing in vars(module).items()
               if isinstance(thing, type) and thing.__module__ == module.__name__}
    assert defined - STATE_CLASSES.keys() - STATE_ENUMS.keys() == TRANSIENT_CLASSES


def test_objects_of_the_scheduler_have_no_fields_but_their_slots():
    """A snapshot cannot miss a field: an object has none that its class does not name."""
    for state_class in STATE_CLASSES.values():
        assert not any("__dict__" in vars(base) for base in state_class.__mro__), state_class.__name__


@pytest.mark.parametrize("table", [
    [["Popen", {}]], [["list", []]], [["Scheduler", ["@Scheduler.plan"]]],
    [["Scheduler", [{"os": 1}]]], [["Scheduler", ["@9"]]], [["Scheduler", [1]]]], ids=repr)
def test_invalid_table_is_rejected(table):
    with pytest.raises((KeyError, TypeError, IndexError, ValueError)):
        restore_scheduler(table)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_scheduler_in_any_state_survives_the_round_trip(seed):
    world = make_random_world(seed)
    for _ in range(60):
        if not world.has_no_events:
            world.run_next_event()
    table = take_snapshot(world.scheduler)
    assert as_json(take_snapshot(restore_scheduler(as_json(table)))) == as_json(table)


def test_difference_names_the_changed_field():
    core = Scheduler(SchedulerSettings(), SMALL_MODEL_INFO)
    before = as_json(take_snapshot(core))
    core._last_message_number = 3
    assert list(table_differences(before, as_json(take_snapshot(core)))) == [
        "object 0, a Scheduler: _last_message_number was 0 and is 3"]


# -- snapshots


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
    restored = restore_scheduler(as_json(take_snapshot(core)))
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
    sequences = list(restore_scheduler(as_json(snapshot)).sequences)
    assert {token for sequence in sequences for token in (*sequence.request.prompt, *sequence.generated)} == {0}
    assert [len(sequence.request.prompt) for sequence in sequences] == [20] * 4
    assert [len(sequence.generated) for sequence in sequences] == [5, 5, 0, 0]
    assert "stop" not in table_to_json(snapshot)


def test_later_calls_do_not_change_a_snapshot():
    core = make_busy_scheduler()
    snapshot = take_snapshot(core)
    core.cancel(1, 9.0)
    assert restore_scheduler(as_json(snapshot)).num_unfinished == 4


# -- redacted requests

OMITTED_FIELDS = {"prompt", "sampling_key", "sampling", "end_tokens", "num_prompt_top_tokens", "stop_strings",
                  "max_length", "needed_resources", "adapter_name", "resumed_tokens", "num_given_tokens"}
FULL_REQUEST = Request("a", (7, 8, 9), 5, sampling_key=3, end_tokens=frozenset({4}), stop_strings=("stop",), priority=1,
                       tenant=Tenant("t", 2.0, 1, 2, 3), timeout=1.5, cache_namespace=b"n", block_hashes=(b"x", b"y"),
                       adapter=LoadableResource("adapter", 1), prompt_logprobs=True, resumed_tokens=(7, 8))


def test_every_request_field_is_kept_or_left_out_on_purpose():
    assert {item.name for item in fields(Request)} == OMITTED_FIELDS | set(KEPT_FIELDS)


def test_redacted_request_keeps_lengths_but_no_content():
    again = request_from_json(redacted_request_to_json(redact_request(FULL_REQUEST)))
    assert (again.prompt, again.resumed_tokens, again.end_tokens, again.stop_strings,
            again.sampling_key) == ((0, 0, 0), (0, 0), {PLACEHOLDER_END_TOKEN}, (), 0)
    assert redact_request(again) == redact_request(FULL_REQUEST)


def test_redacted_request_survives_json():
    again = request_from_json(redacted_request_to_json(redact_request(FULL_REQUEST)))
    assert redact_request(again) == redact_request(FULL_REQUEST)


def test_request_without_adapter_and_tenant_survives_json():
    redacted = redact_request(Request("a", (7,), 5))
    assert redact_request(request_from_json(redacted_request_to_json(redacted))) == redacted


def test_request_kind_is_recorded_by_its_name():
    values = redacted_request_to_json(redact_request(Request("a", (7,), 0, kind=RequestKind.CLASSIFY)))
    assert values["kind"] == "labels"
    assert request_from_json(values).kind is RequestKind.CLASSIFY
