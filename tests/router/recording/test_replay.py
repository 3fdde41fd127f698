"""Replay of a recording: the same decisions, or a reported difference."""

import os
import subprocess
import sys
from collections import deque

import pytest
from support.recordings import FACTS, Keeping, ShortSegments, busy_clockwork, changed, clockwork_recording, file_of
from test_simulation import random_world

from router.recording.file import BadRecording
from router.recording.recorder import Recorder
from router.recording.replay import Replay, report
from router.request import Request
from router.scheduler.plan import Answer
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy

SEEDS = range(40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_any_schedule_with_any_fault_replays(seed, tmp_path):
    world = random_world(seed, core=ShortSegments)
    world.run()
    core = world.core
    assert isinstance(core, Recorder)
    outcome = Replay(file_of(core.segments(), tmp_path / "file", world.facts, world.config)).run()
    assert outcome.difference is None
    # The world also repeats old answers, which are in the recording but not in `world.inputs`.
    assert outcome.num_events >= len(world.inputs)


@pytest.mark.slow
def test_a_recording_that_begins_in_the_middle_replays(tmp_path):
    core = busy_clockwork(60)[0].run().core
    outcome = Replay(file_of(core.segments()[5:], tmp_path / "file")).run()
    assert outcome.difference is None
    assert outcome.num_segments > 5


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return clockwork_recording(tmp_path_factory.mktemp("recording") / "file", 30)


def first(lines, call, number=0):
    return [line for line in lines if line.get("call") == call][number]


def set_policy(lines):
    """Change a setting, as if the replaying core decided by another one."""
    for _, content in [row for line in lines for row in line.get("core", ())]:
        if "policy" in content:
            content["policy"]["Policy"]["max_batch_size"] = 2


CHANGES = {
    "policy": (set_policy, "plan"),
    "digest": (lambda lines: first(lines, "plan", 9)["outcome"].__setitem__(1, "0" * 16), "plan"),
    "length": (lambda lines: first(lines, "submit")["given"][0].update(prompt_tokens=5), "plan"),
    "seconds": (lambda lines: first(lines, "complete", 3)["given"].__setitem__(2, 9.0), ""),
    "a call that is missing": (lambda lines: lines.remove(first(lines, "complete", 4)), ""),
    "end": (lambda lines: first(lines, "complete", 30).update(outcome=[["Finished", 1, "length"]]), "complete"),
    "names": (lambda lines: next(line for line in lines if line.get("names"))["names"].append("00"), "complete"),
    "fewer names": (lambda lines: next(line for line in lines if line.get("names")).pop("names"), "complete"),
    "state": (lambda lines: [line for line in lines if "core" in line][3]["core"][0][1].update(_order=0), "state"),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_changed_is_found_and_named(recording, tmp_path, change):
    change, call = CHANGES[change]
    outcome = Replay(changed(recording, tmp_path / "file", change)).run()
    assert outcome.difference is not None
    assert outcome.difference.call == call or not call
    assert f"event {outcome.difference.number} (" in report(recording, outcome, 0.0)


def test_a_crash_happens_again(tmp_path, monkeypatch):
    usual = Scheduler._leave_foreseen_ends

    def fails_with_two(core):
        if core.num_unfinished == 2:
            raise AssertionError("two are too many")
        usual(core)

    monkeypatch.setattr(Scheduler, "_leave_foreseen_ends", fails_with_two)
    core = ShortSegments(Policy(), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    core.submit(Request("a", (7,) * 20, 3), 0.0)
    core.plan(0.1)
    core.submit(Request("b", (7,) * 20, 3), 0.2)
    with pytest.raises(AssertionError, match="two are too many"):
        core.plan(0.3)
    assert Replay(file_of(core.segments(), tmp_path / "file")).run().difference is None


def test_a_crash_that_does_not_happen_again_is_a_difference(tmp_path):
    core = ShortSegments(Policy(), FACTS)
    core.shards_ready(FACTS, 1, 0.0)
    core.submit(Request("a", (7,) * 20, 3), 0.0)
    core.complete(core.plan(0.1).order, Answer(1, 0.1, {}, {1: "why"}), {}, 0.2)
    core._in_flight = None
    with pytest.raises(TypeError):
        core.plan(0.3)
    # The recording lacks what broke the core, so the replay does not crash: that is the difference.
    difference = Replay(file_of(core.segments(), tmp_path / "file")).run().difference
    assert difference.call == "crash"
    assert "TypeError" in difference.recorded


def test_a_recording_of_another_core_is_one_line(recording, tmp_path):
    other = changed(recording, tmp_path / "file", lambda lines: lines[1]["core"][0].__setitem__(0, "Planner"))
    with pytest.raises(BadRecording, match="whose core does not fit this one"):
        Replay(other).run()


@pytest.mark.parametrize(("change", "message"), [
    (lambda lines: lines.__delitem__(slice(1, None)), "holds no segment"),
    (lambda lines: lines.__delitem__(1), "event 1 is a shards_ready, out of its place"),
    (lambda lines: lines[2].update(call="exec"), "event 1 is a exec, out of its place or unknown"),
])
def test_a_recording_without_beginning_or_with_strange_calls_is_one_line(recording, tmp_path, change, message):
    with pytest.raises(BadRecording, match=message):
        Replay(changed(recording, tmp_path / "file", change)).run()


# -- as a program


def replayed(path, seed="0"):
    """Replay the file in a separate process and return its exit code, stdout and stderr."""
    done = subprocess.run([sys.executable, "-m", "router.recording.replay", f'{{"file": "{path}"}}'], text=True,
                          capture_output=True, check=False, env=os.environ | {"PYTHONHASHSEED": seed})
    return done.returncode, done.stdout, done.stderr


def digest_of(output):
    return output.rpartition("every decision is the same, digest ")[2].strip()


@pytest.mark.slow
def test_every_hash_seed_gives_the_same_digest(recording):
    digests = {digest_of(replayed(recording.path, seed)[1]) for seed in ("0", "1", "77")}
    assert len(digests) == 1
    assert len(digests.pop()) == 16


@pytest.mark.slow
def test_the_exit_code_tells_of_a_difference_and_of_a_bad_file(recording, tmp_path):
    other = changed(recording, tmp_path / "file", set_policy)
    code, output, errors = replayed(other.path)
    assert (code, errors) == (1, "")
    assert "differs\n  recorded: " in output
    assert replayed(tmp_path / "none") == (2, "", f"weft: cannot read {tmp_path / 'none'}: No such file or directory\n")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_events_replay_to_the_same_digest_under_three_hash_seeds(tmp_path):
    work, settings = busy_clockwork(100_000, core=Keeping)
    work.taken = deque(maxlen=1)  # a million steps would only fill the memory
    core = work.run().core
    recording = file_of(core.segments(), tmp_path / "file", work.model.facts(2000), settings)
    outputs = [replayed(recording.path, seed)[1] for seed in ("0", "1", "77")]
    assert len({digest_of(output) for output in outputs}) == 1
    assert int(outputs[0].split()[2].replace(",", "")) >= 1_000_000
