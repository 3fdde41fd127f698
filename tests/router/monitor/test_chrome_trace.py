"""Trace events, by the rules of Chrome's format."""

import json
from itertools import pairwise
from numbers import Real

from router.monitor.chrome_trace import iterate_chrome_trace
from router.monitor.observed_steps import ObservedStep

STEPS = [
    ObservedStep(1, "prefill", 10.02, 0.018, 0.02, 1, 1, [(0, 1, 40, "f"), (1, 2, 24, "p")], [(0, 1), (1, 2)],
                 num_running=2, num_waiting=1, num_blocks_used=5),
    ObservedStep(2, "mixed", 10.03, 0.009, 0.01, 1, 2, [(0, 1, 1, "d"), (1, 2, 24, "f")], [], [(0, 1, "length")],
                 [], [], 2, 1, 6),
    ObservedStep(2, "idle", 10.04, num_waiting=1, cancelled=[(1, 2)]),
    ObservedStep(3, "pooling", 10.06, 0.019, 0.02, 1, 4, [(0, 3, 12, "e")], [(0, 3)], [(0, 3, "length")])]
SEQUENCES = {1: {"request_id": "r-1", "tenant": "a", "adapter": None}, 2: {"request_id": None, "tenant": None}}


def make_pieces(steps=STEPS):
    return [*iterate_chrome_trace([step.to_json(0.0) for step in steps], SEQUENCES, {"model": "m"})]


def make_trace(steps=STEPS):
    return json.loads("".join(make_pieces(steps)))


def check_event(event):
    """Assert what Perfetto's importer of JSON and Chrome's document of the format ask of an event."""
    assert isinstance(event["name"], str)
    assert isinstance(event["pid"], int)
    assert isinstance(event["tid"], int)
    assert isinstance(event["args"], dict)
    assert event["ph"] in {"M", "X", "i", "C"}
    if event["ph"] == "M":
        assert event["name"] in {"process_name", "thread_name", "thread_sort_index"}
        assert event["args"].keys() <= {"name", "sort_index"}
        return
    assert isinstance(event["ts"], Real)
    assert event["ts"] >= 0
    if event["ph"] == "X":
        assert event["dur"] >= 0
    if event["ph"] == "i":
        assert event["s"] in {"t", "p", "g"}
    if event["ph"] == "C":
        assert event["args"]
        assert all(isinstance(value, Real) for value in event["args"].values())


def test_every_event_has_the_fields_of_its_phase():
    trace = make_trace()
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    assert trace["otherData"] == {"model": "m"}
    for event in trace["traceEvents"]:
        check_event(event)


def test_every_track_is_named_before_it_is_used():
    names = {event["tid"]: event["args"]["name"] for event in make_trace()["traceEvents"]
             if event["name"] == "thread_name"}
    assert names == {0: "steps", 1: "lane 0", 2: "lane 1"}
    assert {event["tid"] for event in make_trace()["traceEvents"]} <= names.keys()


def test_spans_of_a_track_do_not_overlap():
    for track in (0, 1, 2):
        spans = [(event["ts"], event["ts"] + event["dur"]) for event in make_trace()["traceEvents"]
                 if event["ph"] == "X" and event["tid"] == track]
        assert spans == sorted(spans)
        assert all(end <= start + 0.2 for (_, end), (start, _) in pairwise(spans))


def test_rows_are_spans_in_the_track_of_their_lane():
    rows = [(event["tid"], event["name"], event["ts"], event["dur"], event["args"]) for event in
            make_trace()["traceEvents"] if event["ph"] == "X" and event["tid"]]
    assert rows[:3] == [
        (1, "prefill", 0.0, 20000.0, {"id": 1, "tokens": 40, "request_id": "r-1", "tenant": "a"}),
        (2, "prefill", 0.0, 20000.0, {"id": 2, "tokens": 24}),
        (1, "decode", 20000.0, 10000.0, {"id": 1, "tokens": 1, "request_id": "r-1", "tenant": "a"})]
    assert rows[-1][:2] == (1, "pooling")


def test_ends_are_instants():
    instants = [(event["name"], event["tid"], event["args"]) for event in make_trace()["traceEvents"]
                if event["ph"] == "i"]
    assert ("finished", 1, {"id": 1, "reason": "length"}) in instants
    assert ("cancelled", 2, {"id": 2}) in instants
    assert instants[:2] == [("admitted", 1, {"id": 1}), ("admitted", 2, {"id": 2})]


def test_trace_of_no_steps_is_a_trace():
    assert [event["ph"] for event in make_trace([])["traceEvents"]] == ["M", "M", "M"]


def test_each_step_is_a_piece():
    """Regression: the whole was one call of json.dumps, which stopped the event loop for seconds."""
    pieces = make_pieces()
    assert len(pieces) == len(STEPS) + 2
    assert [f'"step":{step.number},' in piece for piece, step in zip(pieces[1:], STEPS, strict=False)] == [
        True, True, False, True]


def test_track_is_named_in_the_step_that_uses_it_first():
    pieces = make_pieces([STEPS[3], STEPS[0]])
    assert ["lane 0" in piece for piece in pieces] == [False, True, False, False]
    assert ["lane 1" in piece for piece in pieces] == [False, False, True, False]
