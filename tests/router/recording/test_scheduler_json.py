"""Serialization of the core to JSON and back."""

import json
from collections import OrderedDict, deque
from itertools import count
from math import inf

import pytest
from support.scheduling.recordings import SMALL_MODEL_INFO
from test_simulation import make_random_world

from router.recording.scheduler_json import (
    ObjectTableReader,
    ObjectTableWriter,
    scheduler_from_json,
    scheduler_to_json,
    table_differences,
)
from router.recording.snapshot import restore_scheduler, take_snapshot
from router.request import LoadableResource, Tenant, hash_blocks
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import SequenceState
from router.scheduler.settings import SchedulerSettings


def round_trip(value):
    writer = ObjectTableWriter()
    encoded = writer.encode_value(value)
    table = json.loads(json.dumps(writer.table))
    return ObjectTableReader(table, hash_blocks).decode_value(json.loads(json.dumps(encoded)))


@pytest.mark.parametrize("thing", [None, True, 5, "text", 0.1, inf, -inf, b"\x00\xff", (1, (2.5, "x")), [1, [2]],
                                   {1: {b"k": (3,)}}, {(1, b"x"): 2}, {1, 2},
                                   frozenset({LoadableResource("adapter", 1)}), deque([1, 2]), SequenceState.PREEMPTED,
                                   Tenant("t", 2.0), {}, [], (), OrderedDict([(2, 1), (1, 2)])], ids=repr)
def test_every_type_of_value_survives_the_round_trip(thing):
    again = round_trip(thing)
    assert again == thing
    assert type(again) is type(thing)


def test_counter_continues_after_the_round_trip():
    assert next(round_trip(count(7))) == 7


def test_shared_and_cyclic_references_survive_the_round_trip():
    circle = [1]
    circle += [circle, {"a": circle}]
    again = round_trip([circle, circle])
    assert again[0] is again[1]
    assert again[0][1] is again[0][2]["a"] is again[0]


def test_foreign_objects_are_rejected():
    with pytest.raises(TypeError, match=r"the core holds a builtins\.complex"):
        ObjectTableWriter().encode_value(1j)


@pytest.mark.parametrize("table", [
    [["Popen", {}]], [["list", []]], [["Scheduler", {"x": {"enum": "Scheduler.plan"}}]],
    [["Scheduler", {"x": {"os": 1}}]], [["Scheduler", {"x": {"at": 9}}]]], ids=repr)
def test_invalid_table_is_rejected(table):
    with pytest.raises((KeyError, TypeError, IndexError)):
        scheduler_from_json(table, hash_blocks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_scheduler_in_any_state_survives_the_round_trip(seed):
    world = make_random_world(seed)
    for _ in range(60):
        if not world.has_no_events:
            world.run_next_event()
    table = scheduler_to_json(restore_scheduler(take_snapshot(world.scheduler)))
    assert scheduler_to_json(scheduler_from_json(json.loads(json.dumps(table)), hash_blocks)) == table


def test_difference_names_the_changed_field():
    core = Scheduler(SchedulerSettings(), SMALL_MODEL_INFO)
    before = scheduler_to_json(core)
    core._last_message_number = 3
    assert list(table_differences(before, scheduler_to_json(core))) == [
        "object 0, a Scheduler: _last_message_number was 0 and is 3"]
