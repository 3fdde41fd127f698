"""Discovery of the core's classes and fields."""

from enum import Enum

import pytest
from support.recordings import busy_clockwork

from router.recording.anatomy import CLASSES, fields_of, has_dict, is_value, names_of
from router.request import Tenant
from router.scheduler.scheduler import Scheduler, Step
from router.scheduler.sequence import Sequence


def reachable(thing, found):
    if id(thing) in found or not type(thing).__module__.startswith(("router", "support")):
        return found
    found[id(thing)] = thing
    values = vars(thing).values() if hasattr(thing, "__dict__") else fields_of(thing).values()
    for value in values:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        for part in (value, *parts):
            reachable(part, found)
    return found


def test_the_classes_are_those_of_the_core():
    assert {"Scheduler", "Sequence", "Queue", "Blocks", "CostModel", "Mixed", "Pause", "Step"} <= CLASSES.keys()
    assert "Engine" not in CLASSES


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_no_field_of_a_busy_core_is_overlooked(policy):
    work, _ = busy_clockwork(40, prefill_policy=policy)
    core = work.run(until=lambda work: work.now > 3.0).core
    things = reachable(core, {})
    assert len(things) > 20
    for thing in things.values():
        if hasattr(thing, "__dict__") and type(thing).__name__ in CLASSES and not isinstance(thing, Enum):
            assert fields_of(thing) == vars(thing)


def test_a_class_with_slots_has_those_fields():
    assert set(names_of(Sequence)) == set(Sequence.__slots__)
    assert not has_dict(Sequence)
    assert has_dict(Scheduler)


def test_frozen_dataclasses_are_values():
    assert is_value(Tenant)
    assert is_value(Step)
    assert not is_value(Sequence)
    assert not is_value(Scheduler)
