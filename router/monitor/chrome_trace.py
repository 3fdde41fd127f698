"""Chrome's trace-event format of observed steps, which Perfetto (ui.perfetto.dev) and chrome://tracing open: a track
for the steps and one for each lane of the batch, instants where sequences leave, and counters."""

from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from typing import Any

from router.monitor.observed_steps import CHUNK_ROW, DECODE_ROW, FINAL_CHUNK_ROW, POOLING_ROW

PROCESS_ID = 1
STEPS_TRACK = 0  # number of the thread that stands for the track; that of lane n is n + 1
ROW_NAMES = {CHUNK_ROW: "prefill", FINAL_CHUNK_ROW: "prefill", DECODE_ROW: "decode", POOLING_ROW: "pooling"}
COUNTERS = {"running": "sequences", "waiting": "sequences", "blocks_used": "blocks"}

TraceEvent = dict[str, Any]


def iterate_chrome_trace(steps: Iterable[Mapping[str, Any]], sequences: Mapping[int, Mapping[str, Any]],
                         metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON of the trace, a piece for each step: the whole would be one long call, which lets no other thread
    run. The steps are in the form of frames and in order; `sequences` are described by id, as the viewer may see them.
    Times begin with the first step, in microseconds."""
    events = [{"name": "process_name", "ph": "M", "pid": PROCESS_ID, "tid": STEPS_TRACK, "args": {"name": "weft"}},
              *iterate_track_events(STEPS_TRACK, "steps")]
    yield f'{{"displayTimeUnit":"ms","otherData":{dumps(metadata)},"traceEvents":[{dump_without_brackets(events)}'
    started_at: float | None = None
    named_lanes: set[int] = set()
    for step in steps:
        if started_at is None:
            started_at = step["t"] - step["wall_ms"] / 1000
        new_lanes = {lane for lane, *_ in step["rows"]} - named_lanes
        named_lanes |= new_lanes
        events = [event for lane in sorted(new_lanes) for event in iterate_track_events(lane + 1, f"lane {lane}")]
        events += iterate_step_events(step, sequences, started_at)
        yield "," + dump_without_brackets(events)
    yield "]}"


def dump_without_brackets(events: list[TraceEvent]) -> str:
    return dumps(events, separators=(",", ":"))[1:-1]


def iterate_track_events(track: int, name: str) -> Iterator[TraceEvent]:
    yield {"name": "thread_name", "ph": "M", "pid": PROCESS_ID, "tid": track, "args": {"name": name}}
    yield {"name": "thread_sort_index", "ph": "M", "pid": PROCESS_ID, "tid": track, "args": {"sort_index": track}}


def iterate_step_events(step: Mapping[str, Any], sequences: Mapping[int, Mapping[str, Any]],
                        started_at: float) -> Iterator[TraceEvent]:
    duration = round(step["wall_ms"] * 1000, 1)
    end = round((step["t"] - started_at) * 1e6, 1)
    start = round(max(end - duration, 0.0), 1)
    span = {"ph": "X", "pid": PROCESS_ID, "ts": start, "dur": round(end - start, 1)}
    if step["rows"]:
        yield {"name": step["kind"], "cat": "step", "tid": STEPS_TRACK, **span, "args": {
            "step": step["step"], "rows": len(step["rows"]), "shard_ms": step["ms"], "epoch": step["epoch"],
            "message": step["message"]}}
    for lane, sequence_id, num_tokens, kind in step["rows"]:
        name = ROW_NAMES[kind]
        yield {"name": name, "cat": name, "tid": lane + 1, **span,
               "args": describe_row(sequence_id, num_tokens, sequences.get(sequence_id, {}))}
    instant = {"cat": "sequence", "ph": "i", "s": "t", "pid": PROCESS_ID}
    for lane, sequence_id in step["admitted"]:
        yield {"name": "admitted", **instant, "tid": lane + 1, "ts": start, "args": {"id": sequence_id}}
    for lane, sequence_id, reason in step["finished"]:
        yield {"name": "finished", **instant, "tid": lane + 1, "ts": end,
               "args": {"id": sequence_id, "reason": reason}}
    for name in ("preempted", "cancelled"):
        for lane, sequence_id in step[name]:
            yield {"name": name, **instant, "tid": lane + 1, "ts": start, "args": {"id": sequence_id}}
    for name, unit in COUNTERS.items():
        yield {"name": name, "ph": "C", "pid": PROCESS_ID, "tid": STEPS_TRACK, "ts": end, "args": {unit: step[name]}}


def describe_row(sequence_id: int, num_tokens: int, sequence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a row's event, with the names that the viewer may see."""
    names = {name: sequence[name] for name in ("request_id", "tenant", "adapter") if sequence.get(name)}
    return {"id": sequence_id, "tokens": num_tokens, **names}
