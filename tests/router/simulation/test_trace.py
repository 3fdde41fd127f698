"""Traces of requests, read from recordings and from plain lists."""

import json
from statistics import median

import pytest
from support.recordings import FACTS, ShortSegments, changed, clockwork_recording, file_of

from router.recording.file import BadRecording
from router.request import Request
from router.scheduler.plan import Answer, AnswerRow
from router.scheduler.settings import Policy
from router.simulation.trace import Trace, read_trace


def step(core, now, end=()):
    plan = core.plan(now)
    rows = {number: AnswerRow((9 if number in end else 7,), (0.0,)) for number in plan.expects}
    core.complete(plan.order, Answer(1, 0.01, rows, {}), {}, now + 0.02)


def a_core(*requests):
    core = ShortSegments(Policy(max_concurrent_requests=3), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    for number, length in enumerate(requests):
        core.submit(Request(f"{number}", (7,) * 20, length, end_tokens=frozenset({9})), 0.1 * number)
    return core


def test_a_recording_tells_who_came_when_and_got_how_much(tmp_path):
    core = a_core(3, 50, 50, 50)
    for index in range(4):
        step(core, 0.4 + 0.1 * index, end=(2,) if index == 1 else ())
    core.cancel(3, 0.9)
    trace = read_trace(file_of(core.segments(), tmp_path / "file").path)
    # Ended by length, by an end token, by leaving after some tokens; the rejected request gets the median length.
    assert [(arrival.at, arrival.output_tokens) for arrival in trace.arrivals] == [
        (0.0, 3), (0.1, 2), (0.2, 4), (pytest.approx(0.3), 3)]
    assert trace.figures.num_refused == 1


def test_who_left_before_the_first_token_leaves_by_time(tmp_path):
    core = a_core(3, 3)
    core.cancel(2, 0.7)
    arrivals = read_trace(file_of(core.segments(), tmp_path / "file").path).arrivals
    assert [arrival.leaves_after for arrival in arrivals] == [None, pytest.approx(0.6)]


def test_a_recording_tells_when_newcomers_were_noticed(tmp_path):
    """The router plans nothing while it reads the bodies of a burst, so the requests start together."""
    core = a_core(3, 3)
    step(core, 0.4)
    arrivals = read_trace(file_of(core.segments(), tmp_path / "file").path).arrivals
    assert [arrival.noticed_after for arrival in arrivals] == [pytest.approx(0.4), pytest.approx(0.3)]


def test_who_was_there_already_comes_at_the_beginning_with_all_tokens(tmp_path):
    core = a_core(30)
    for index in range(10):
        step(core, 0.1 + 0.1 * index)
    one, = read_trace(file_of(core.segments()[1:], tmp_path / "file").path).arrivals
    assert (one.at, one.is_known) == (0.0, False)
    assert len(one.request.prompt) + one.output_tokens == 20 + 10
    assert one.request.max_length == 50


def test_a_recording_that_does_not_replay_teaches_nothing(tmp_path):
    core = a_core(3)
    step(core, 0.5)
    recording = file_of(core.segments(), tmp_path / "file")
    other = changed(recording, tmp_path / "other", lambda lines: lines[3].update(given=[]) or lines.pop(3))
    with pytest.raises(BadRecording, match="does not replay"):
        read_trace(other.path)


def test_generated_blocks_keep_their_names_and_others_get_new_ones():
    names = Trace([], following={b"a": [b"b", b"c"], b"b": [b"d"]}).hasher()
    assert [names(b"a", (0,) * 32, 16), names(b"a", (0,) * 16, 16)] == [[b"b", b"d"], [b"c"]]
    assert len({*names(b"a", (0,) * 48, 16), *names(b"a", (0,), 1), *names(b"z", (0,), 1)}) == 5


@pytest.mark.slow
def test_a_pace_is_learned(tmp_path):
    pace = read_trace(clockwork_recording(tmp_path / "file", 60).path).pace
    assert pace.coefficients[2] == pytest.approx(0.0004, rel=0.2)
    assert median(ratio for ratios in pace.luck.values() for ratio in ratios) == pytest.approx(1.0, abs=0.1)
    assert sorted(pace.alone)[len(pace.alone) // 2] == pytest.approx(0.002, abs=1e-6)


# -- plain lists


def plain(path, *lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return read_trace(path)


def test_a_plain_trace_is_sorted_by_time(tmp_path):
    trace = plain(tmp_path / "file", {"at": 2, "prompt_tokens": 5, "output_tokens": 6, "tenant": "t", "priority": 1},
                  {"at": 1.5, "prompt_tokens": 7, "output_tokens": 8, "max_new_tokens": 20, "leaves_after": 3.0})
    first, second = trace.arrivals
    assert (first.at, len(first.request.prompt), first.output_tokens, first.leaves_after) == (1.5, 7, 8, 3.0)
    assert (first.request.max_new_tokens, second.request.max_new_tokens) == (20, 6)
    assert (second.request.tenant.name, second.request.priority) == ("t", 1)
    assert trace.pace is None


def test_requests_of_one_prefix_share_the_names_of_its_blocks(tmp_path):
    line = {"at": 0, "prompt_tokens": 50, "output_tokens": 6, "prefix": "a", "prefix_tokens": 40}
    one, two, other = plain(tmp_path / "file", line, line, line | {"prefix": "b"}).arrivals
    assert one.request.block_hashes == two.request.block_hashes != other.request.block_hashes
    assert len(one.request.block_hashes) == 2


@pytest.mark.parametrize("line", ["{", "[]", '{"at": 1}', '{"at": 0, "prompt_tokens": 0, "output_tokens": 1}'])
def test_a_bad_line_of_a_plain_trace_is_named(tmp_path, line):
    with pytest.raises(BadRecording, match="line 2 is no request of a trace"):
        plain(tmp_path / "file", {"at": 0, "prompt_tokens": 1, "output_tokens": 1}, line)


def test_what_is_neither_is_one_line(tmp_path):
    with pytest.raises(BadRecording, match="is no recording"):
        plain(tmp_path / "file", {"some": "thing"})
    with pytest.raises(BadRecording, match="cannot read"):
        read_trace(tmp_path / "nothing")
