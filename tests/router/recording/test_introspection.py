"""Discovery of the core's classes and fields."""

from enum import Enum

import pytest
from support.scheduling.recordings import make_busy_simulation

from router.recording.introspection import (
    SCHEDULER_CLASSES,
    field_names,
    has_instance_dict,
    is_value_type,
    object_fields,
)
from router.request import Tenant
from router.scheduler.scheduler import Scheduler, StepInFlight
from router.scheduler.sequence import Sequence


def find_reachable_objects(instance, found_by_id):
    if id(instance) in found_by_id or not type(instance).__module__.startswith(("router", "support")):
        return found_by_id
    found_by_id[id(instance)] = instance
    values = vars(instance).values() if hasattr(instance, "__dict__") else object_fields(instance).values()
    for value in values:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        for part in (value, *parts):
            find_reachable_objects(part, found_by_id)
    return found_by_id


def test_scheduler_classes_are_discovered():
    assert {"Scheduler", "Sequence", "WaitingQueue", "BlockPool", "CostModel", "MixedPolicy",
            "PausePolicy", "StepInFlight"} <= SCHEDULER_CLASSES.keys()
    assert "Engine" not in SCHEDULER_CLASSES


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_every_field_of_a_busy_scheduler_is_discovered(policy):
    work, _ = make_busy_simulation(40, prefill_policy=policy)
    core = work.run(should_stop=lambda work: work.now > 3.0).scheduler
    things = find_reachable_objects(core, {})
    assert len(things) > 20
    for thing in things.values():
        if hasattr(thing, "__dict__") and type(thing).__name__ in SCHEDULER_CLASSES and not isinstance(thing, Enum):
            assert object_fields(thing) == vars(thing)


def test_fields_of_a_class_with_slots_are_its_slots():
    assert set(field_names(Sequence)) == set(Sequence.__slots__)
    assert not has_instance_dict(Sequence)
    assert has_instance_dict(Scheduler)


def test_frozen_dataclasses_are_values():
    assert is_value_type(Tenant)
    assert is_value_type(StepInFlight)
    assert not is_value_type(Sequence)
    assert not is_value_type(Scheduler)
