"""JSON of steps, and facts about sequences."""

import json

from router.monitor.observed_steps import (
    ObservedSequence,
    ObservedStep,
    StepJsonEncoder,
    round_seconds,
    to_milliseconds,
)
from router.request import ADAPTER, LoadableResource, Request, RequestKind, Tenant


def test_step_as_json_has_times_of_the_reader_and_milliseconds():
    step = ObservedStep(7, "mixed", 5.25, 0.0101, 0.0202, 1, 9, [(0, 3, 1, "d"), (1, 4, 20, "f")], [(1, 4)],
                        [(0, 3, "length")], [(2, 5)], [(3, 6)], 2, 8, 11)
    encoder = StepJsonEncoder(100.0)
    for _ in range(2):  # the second time the rows are those of the step before
        assert json.loads(encoder.encode(step)) == json.loads(json.dumps(step.to_json(100.0)))
    assert json.loads(encoder.encode(ObservedStep(8, "idle", 6.0)))["rows"] == []
    assert json.loads(json.dumps(step.to_json(100.0))) == {
        "step": 7, "t": 105.25, "kind": "mixed", "ms": 10.1, "wall_ms": 20.2, "epoch": 1, "message": 9,
        "rows": [[0, 3, 1, "d"], [1, 4, 20, "f"]], "admitted": [[1, 4]], "finished": [[0, 3, "length"]],
        "preempted": [[2, 5]], "cancelled": [[3, 6]], "running": 2, "waiting": 8, "blocks_used": 11}


def test_facts_of_a_sequence_hold_no_token_of_its_prompt():
    request = Request("a", (4711,) * 5, 9, tenant=Tenant("t"), adapter=LoadableResource(ADAPTER, 3), adapter_name="x",
                      stop_strings=("secret",), priority=2, block_hashes=(b"h",), cache_namespace=b"n")
    observed = ObservedSequence.from_request(1, request, 2.0)
    assert (observed.num_prompt_tokens, observed.max_new_tokens, observed.kind) == (5, 9, RequestKind.GENERATE)
    assert "4711" not in repr(observed)
    assert "secret" not in repr(observed)


def test_times_are_rounded_to_a_tenth_of_a_millisecond_and_durations_to_a_microsecond():
    assert round_seconds(1.23456) == 1.2346
    assert to_milliseconds(0.0012345678) == 1.235
