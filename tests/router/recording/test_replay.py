"""Replay of a recording: the same decisions, or a reported difference."""

import os
import subprocess
import sys
from collections import deque

import pytest
from support.scheduling.recordings import (
    SMALL_MODEL_INFO,
    ShortSegmentRecorder,
    UnboundedRecorder,
    copy_recording_with_change,
    make_busy_simulation,
    record_busy_simulation,
    write_recording_file,
)
from test_simulation import make_random_world

from router.recording.recording_file import BadRecording
from router.recording.recording_scheduler import RecordingScheduler
from router.recording.replay import Replay, format_report
from router.recording.scheduler_snapshot import field_names
from router.request import Request
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult

LONG_SEED = 8  # of slow steps, so that the recording has more than a thousand segments
SEEDS = [pytest.param(seed, marks=() if seed < 14 and seed != LONG_SEED else pytest.mark.long) for seed in range(40)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_any_schedule_with_faults_replays_identically(seed, tmp_path):
    world = make_random_world(seed, make_scheduler=ShortSegmentRecorder)
    world.run()
    core = world.scheduler
    assert isinstance(core, RecordingScheduler)
    outcome = Replay(write_recording_file(core.copy_segments(), tmp_path / "file", world.model_info,
                                          world.config)).run()
    assert outcome.difference is None
    # The world also repeats old answers, which are in the recording but not in `world.scheduler_calls`.
    assert outcome.num_events >= len(world.scheduler_calls)


@pytest.mark.slow
def test_recording_that_starts_in_the_middle_replays(tmp_path):
    core = make_busy_simulation(60)[0].run().scheduler
    outcome = Replay(write_recording_file(core.copy_segments()[5:], tmp_path / "file")).run()
    assert outcome.difference is None
    assert outcome.num_segments > 5


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return record_busy_simulation(tmp_path_factory.mktemp("recording") / "file", 30)


def find_call(lines, call, number=0):
    return [line for line in lines if line.get("call") == call][number]


def change_max_batch_size(lines):
    """Change a setting, as if the replaying core decided by another one."""
    for value in [value for line in lines for _, content in line.get("core", ()) for value in content]:
        if isinstance(value, dict) and "SchedulerSettings" in value:
            value["SchedulerSettings"][field_names(SchedulerSettings).index("max_batch_size")] = 2


RECORDING_CHANGES = {
    "policy": (change_max_batch_size, "plan"),
    "digest": (lambda lines: find_call(lines, "plan", 9)["outcome"].__setitem__(1, "0" * 16), "plan"),
    "length": (lambda lines: find_call(lines, "submit")["given"][0].update(prompt_tokens=5), "plan"),
    "seconds": (lambda lines: find_call(lines, "complete_step", 3)["given"].__setitem__(2, 9.0), ""),
    "a call that is missing": (lambda lines: lines.remove(find_call(lines, "complete_step", 4)), ""),
    "end": (lambda lines: find_call(lines, "complete_step", 30).update(outcome=[["SequenceFinished", 1, "length"]]),
            "complete_step"),
    "names": (lambda lines: next(line for line in lines if line.get("names"))["names"].append("00"), "complete_step"),
    "fewer names": (lambda lines: next(line for line in lines if line.get("names")).pop("names"), "complete_step"),
    "state": (lambda lines: [line for line in lines if "core" in line][3]["core"][0][1].__setitem__(
        field_names(Scheduler).index("_last_message_number"), 0), "state"),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", RECORDING_CHANGES)
def test_any_change_of_a_recording_is_found_and_named(recording, tmp_path, change):
    change, call = RECORDING_CHANGES[change]
    outcome = Replay(copy_recording_with_change(recording, tmp_path / "file", change)).run()
    assert outcome.difference is not None
    assert outcome.difference.method == call or not call
    assert f"event {outcome.difference.event_number} (" in format_report(recording, outcome, 0.0)


def test_recorded_crash_is_reproduced(tmp_path, monkeypatch):
    usual = Scheduler._draft_step

    def fail_with_two_unfinished(core, now):
        if core.num_unfinished == 2:
            raise AssertionError("two are too many")
        return usual(core, now)

    monkeypatch.setattr(Scheduler, "_draft_step", fail_with_two_unfinished)
    core = ShortSegmentRecorder(SchedulerSettings(), SMALL_MODEL_INFO)
    core.on_shards_ready(SMALL_MODEL_INFO, 1, 0.0)
    core.submit(Request("a", (7,) * 20, 3), 0.0)
    core.plan(0.1)
    core.submit(Request("b", (7,) * 20, 3), 0.2)
    with pytest.raises(AssertionError, match="two are too many"):
        core.plan(0.3)
    assert Replay(write_recording_file(core.copy_segments(), tmp_path / "file")).run().difference is None


def test_crash_that_is_not_reproduced_is_a_difference(tmp_path):
    core = ShortSegmentRecorder(SchedulerSettings(), SMALL_MODEL_INFO)
    core.on_shards_ready(SMALL_MODEL_INFO, 1, 0.0)
    core.submit(Request("a", (7,) * 20, 3), 0.0)
    core.complete_step(core.plan(0.1).last_message_number, StepResult(1, 0.1, {}, {1: "why"}), {}, 0.2)
    core._unanswered_plans = None
    with pytest.raises(TypeError):
        core.plan(0.3)
    # The recording lacks what broke the core, so the replay does not crash: that is the difference.
    difference = Replay(write_recording_file(core.copy_segments(), tmp_path / "file")).run().difference
    assert difference.method == "crash"
    assert "TypeError" in difference.recorded_outcome


def test_recording_of_another_scheduler_is_reported_in_one_line(recording, tmp_path):
    changed = copy_recording_with_change(recording, tmp_path / "file",
                                         lambda lines: lines[1]["core"][0].__setitem__(0, "Planner"))
    with pytest.raises(BadRecording, match="whose core does not fit this one"):
        Replay(changed).run()


@pytest.mark.parametrize(("change", "message"), [
    (lambda lines: lines.__delitem__(slice(1, None)), "holds no segment"),
    (lambda lines: lines.__delitem__(1), "event 1 is on_shards_ready, out of its place"),
    (lambda lines: lines[2].update(call="exec"), "event 1 is exec, out of its place or unknown"),
])
def test_malformed_recording_is_reported_in_one_line(recording, tmp_path, change, message):
    with pytest.raises(BadRecording, match=message):
        Replay(copy_recording_with_change(recording, tmp_path / "file", change)).run()


# -- as a program


def run_replay_program(path, seed="0"):
    """Replay the file in a separate process and return its exit code, stdout and stderr."""
    done = subprocess.run([sys.executable, "-m", "router.recording.replay", f'{{"file": "{path}"}}'], text=True,
                          capture_output=True, check=False, env=os.environ | {"PYTHONHASHSEED": seed})
    return done.returncode, done.stdout, done.stderr


def get_digest(output):
    return output.rpartition("every decision is the same, digest ")[2].strip()


@pytest.mark.slow
def test_every_hash_seed_gives_the_same_digest(recording):
    digests = {get_digest(run_replay_program(recording.path, seed)[1]) for seed in ("0", "1", "77")}
    assert len(digests) == 1
    assert len(digests.pop()) == 16


@pytest.mark.slow
def test_exit_code_reports_differences_and_bad_files(recording, tmp_path):
    changed = copy_recording_with_change(recording, tmp_path / "file", change_max_batch_size)
    code, output, errors = run_replay_program(changed.path)
    assert (code, errors) == (1, "")
    assert "differs\n  recorded: " in output
    assert run_replay_program(tmp_path / "none") == (
        2, "", f"weft: cannot read {tmp_path / 'none'}: No such file or directory\n")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_million_events_replay_to_the_same_digest_under_three_hash_seeds(tmp_path):
    work, settings = make_busy_simulation(100_000, recorder_class=UnboundedRecorder)
    work.timed_steps = deque(maxlen=1)  # a million steps would only fill the memory
    core = work.run().scheduler
    recording = write_recording_file(core.copy_segments(), tmp_path / "file", work.true_costs.make_model_info(2000),
                                     settings)
    outputs = [run_replay_program(recording.path, seed)[1] for seed in ("0", "1", "77")]
    assert len({get_digest(output) for output in outputs}) == 1
    assert int(outputs[0].split()[2].replace(",", "")) >= 1_000_000
