"""Traces of requests, read from recordings and from plain lists."""

import json
from statistics import median

import pytest
from support.scheduling.recordings import (
    SMALL_MODEL_INFO,
    ShortSegmentRecorder,
    copy_recording_with_change,
    record_busy_simulation,
    write_recording_file,
)

from router.recording.recording_file import BadRecording
from router.request import Request
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult, StepResultRow
from router.simulation.trace import WorkloadTrace, load_trace


def run_step(core, now, ending=()):
    plan = core.plan(now)
    rows = {number: StepResultRow((9 if number in ending else 7,), (0.0,)) for number in plan.output_ids}
    core.complete_step(plan.last_message_number, StepResult(1, 0.01, rows, {}), {}, now + 0.02)


def make_recorded_scheduler(*output_lengths):
    core = ShortSegmentRecorder(SchedulerSettings(max_concurrent_requests=3), SMALL_MODEL_INFO)
    core.on_shards_ready(SMALL_MODEL_INFO, 1, 0.0)
    for number, length in enumerate(output_lengths):
        core.submit(Request(f"{number}", (7,) * 20, length, end_tokens=frozenset({9})), 0.1 * number)
    return core


def test_recording_gives_arrivals_and_output_lengths(tmp_path):
    core = make_recorded_scheduler(3, 50, 50, 50)
    for index in range(4):
        run_step(core, 0.4 + 0.1 * index, ending=(2,) if index == 1 else ())
    core.cancel(3, 0.9)
    trace = load_trace(write_recording_file(core.copy_segments(), tmp_path / "file").path)
    # Ended by length, by an end token, by leaving after some tokens; the rejected request gets the median length.
    assert [(arrival.arrived_at, arrival.num_output_tokens) for arrival in trace.arrivals] == [
        (0.0, 3), (0.1, 2), (0.2, 4), (pytest.approx(0.3), 3)]
    assert trace.recorded_stats.num_rejected == 1


def test_request_cancelled_before_its_first_token_is_cancelled_by_time(tmp_path):
    core = make_recorded_scheduler(3, 3)
    core.cancel(2, 0.7)
    arrivals = load_trace(write_recording_file(core.copy_segments(), tmp_path / "file").path).arrivals
    assert [arrival.cancelled_after_seconds for arrival in arrivals] == [None, pytest.approx(0.6)]


def test_recording_gives_the_delay_until_requests_were_planned(tmp_path):
    """The router plans nothing while it reads the bodies of a burst, so the requests start together."""
    core = make_recorded_scheduler(3, 3)
    run_step(core, 0.4)
    arrivals = load_trace(write_recording_file(core.copy_segments(), tmp_path / "file").path).arrivals
    assert [arrival.plan_delay_seconds for arrival in arrivals] == [pytest.approx(0.4), pytest.approx(0.3)]


def test_request_known_from_the_start_arrives_at_zero_with_all_its_tokens(tmp_path):
    core = make_recorded_scheduler(30)
    for index in range(10):
        run_step(core, 0.1 + 0.1 * index)
    arrival, = load_trace(write_recording_file(core.copy_segments()[1:], tmp_path / "file").path).arrivals
    assert (arrival.arrived_at, arrival.is_arrival_known) == (0.0, False)
    assert len(arrival.request.prompt) + arrival.num_output_tokens == 20 + 10
    assert arrival.request.max_length == 50


def test_recording_that_does_not_replay_is_rejected(tmp_path):
    core = make_recorded_scheduler(3)
    run_step(core, 0.5)
    recording = write_recording_file(core.copy_segments(), tmp_path / "file")
    changed = copy_recording_with_change(recording, tmp_path / "other",
                                         lambda lines: lines[3].update(num_tokens_to_prefill=[]) or lines.pop(3))
    with pytest.raises(BadRecording, match="does not replay"):
        load_trace(changed.path)


def test_generated_blocks_keep_their_hashes_and_others_get_new_ones():
    names = WorkloadTrace([], next_hashes={b"a": [b"b", b"c"], b"b": [b"d"]}).make_replaying_hasher()
    assert [names(b"a", (0,) * 32, 16), names(b"a", (0,) * 16, 16)] == [[b"b", b"d"], [b"c"]]
    assert len({*names(b"a", (0,) * 48, 16), *names(b"a", (0,), 1), *names(b"z", (0,), 1)}) == 5


@pytest.mark.slow
def test_timing_profile_is_learned_from_a_recording(tmp_path):
    pace = load_trace(record_busy_simulation(tmp_path / "file", 60).path).timing_profile
    assert pace.coefficients[2] == pytest.approx(0.0004, rel=0.2)
    assert median(ratio for ratios in pace.noise.values() for ratio in ratios) == pytest.approx(1.0, abs=0.1)
    assert sorted(pace.idle_overheads)[len(pace.idle_overheads) // 2] == pytest.approx(0.002, abs=1e-6)


# -- plain lists


def write_and_read_plain_trace(path, *lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return load_trace(path)


def test_plain_trace_is_sorted_by_time(tmp_path):
    trace = write_and_read_plain_trace(tmp_path / "file",
                                       {"at": 2, "prompt_tokens": 5, "output_tokens": 6, "tenant": "t", "priority": 1},
                                       {"at": 1.5, "prompt_tokens": 7, "output_tokens": 8, "max_new_tokens": 20,
                                        "leaves_after": 3.0})
    first, second = trace.arrivals
    assert (first.arrived_at, len(first.request.prompt), first.num_output_tokens,
            first.cancelled_after_seconds) == (1.5, 7, 8, 3.0)
    assert (first.request.max_new_tokens, second.request.max_new_tokens) == (20, 6)
    assert (second.request.tenant.name, second.request.priority) == ("t", 1)
    assert trace.timing_profile is None


def test_requests_with_one_prefix_share_its_block_hashes(tmp_path):
    line = {"at": 0, "prompt_tokens": 50, "output_tokens": 6, "prefix": "a", "prefix_tokens": 40}
    first, second, third = write_and_read_plain_trace(tmp_path / "file", line, line, line | {"prefix": "b"}).arrivals
    assert first.request.block_hashes == second.request.block_hashes != third.request.block_hashes
    assert len(first.request.block_hashes) == 2


@pytest.mark.parametrize("line", ["{", "[]", '{"at": 1}', '{"at": 0, "prompt_tokens": 0, "output_tokens": 1}'])
def test_invalid_line_of_a_plain_trace_is_named(tmp_path, line):
    with pytest.raises(BadRecording, match="line 2 is no request of a trace"):
        write_and_read_plain_trace(tmp_path / "file", {"at": 0, "prompt_tokens": 1, "output_tokens": 1}, line)


def test_file_that_is_no_trace_is_reported_in_one_line(tmp_path):
    with pytest.raises(BadRecording, match="is no recording"):
        write_and_read_plain_trace(tmp_path / "file", {"some": "thing"})
    with pytest.raises(BadRecording, match="cannot read"):
        load_trace(tmp_path / "nothing")


def test_plain_trace_names_adapters(tmp_path):
    path = tmp_path / "plain"
    path.write_text("".join(json.dumps({"at": 0, "prompt_tokens": 64, "output_tokens": 1, "prefix": "a",
                                        "prefix_tokens": 32, **fields}) + "\n"
                            for fields in ({"adapter": "x"}, {"adapter": "y"}, {"adapter": "x"}, {})))
    requests = [arrival.request for arrival in load_trace(path).arrivals]
    assert [request.adapter and request.adapter.id for request in requests] == [1, 2, 1, None]
    assert requests[0].block_hashes == requests[2].block_hashes
    assert len({request.block_hashes for request in requests}) == 3, "adapters share no blocks"
