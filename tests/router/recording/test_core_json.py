"""Serialization of the core to JSON and back."""

import json
from collections import OrderedDict, deque
from itertools import count
from math import inf

import pytest
from support.recordings import FACTS
from test_simulation import random_world

from router.block_hash import block_hashes
from router.recording.core_json import Reader, Writer, differences, from_json, to_json
from router.recording.snapshot import restore, take
from router.request import Resource, Tenant
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import State
from router.scheduler.settings import Policy


def through_json(thing):
    writer = Writer()
    told = writer.value(thing)
    table = json.loads(json.dumps(writer.table))
    return Reader(table, block_hashes).value(json.loads(json.dumps(told)))


@pytest.mark.parametrize("thing", [
    None, True, 5, "text", 0.1, inf, -inf, b"\x00\xff", (1, (2.5, "x")), [1, [2]], {1: {b"k": (3,)}}, {(1, b"x"): 2},
    {1, 2}, frozenset({Resource("adapter", 1)}), deque([1, 2]), State.YIELDING, Tenant("t", 2.0), {}, [], (),
    OrderedDict([(2, 1), (1, 2)])], ids=repr)
def test_every_kind_of_value_comes_back(thing):
    again = through_json(thing)
    assert again == thing
    assert type(again) is type(thing)


def test_a_counter_goes_on_where_it_was():
    assert next(through_json(count(7))) == 7


def test_what_is_shared_is_shared_again_and_circles_are_closed():
    circle = [1]
    circle += [circle, {"a": circle}]
    again = through_json([circle, circle])
    assert again[0] is again[1]
    assert again[0][1] is again[0][2]["a"] is again[0]


def test_a_foreign_object_is_not_told():
    with pytest.raises(TypeError, match=r"the core holds a builtins\.complex"):
        Writer().value(1j)


@pytest.mark.parametrize("table", [
    [["Popen", {}]], [["list", []]], [["Scheduler", {"x": {"enum": "Scheduler.plan"}}]],
    [["Scheduler", {"x": {"os": 1}}]], [["Scheduler", {"x": {"at": 9}}]]], ids=repr)
def test_what_is_no_core_is_not_read(table):
    with pytest.raises((KeyError, TypeError, IndexError)):
        from_json(table, block_hashes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_core_in_the_middle_of_anything_comes_back_equal(seed):
    world = random_world(seed)
    for _ in range(60):
        if not world.is_at_rest:
            world.step()
    table = to_json(restore(take(world.core)))
    assert to_json(from_json(json.loads(json.dumps(table)), block_hashes)) == table


def test_a_difference_is_named():
    core = Scheduler(Policy(), FACTS)
    before = to_json(core)
    core._order = 3
    assert list(differences(before, to_json(core))) == ["object 0, a Scheduler: _order was 0 and is 3"]
