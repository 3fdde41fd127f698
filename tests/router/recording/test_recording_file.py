"""Recording files: contents, omitted secrets, invalid files, and the folder that keeps them."""

import json
import logging

import pytest
from support.scheduling.recordings import SMALL_MODEL_INFO, ShortSegmentRecorder, write_recording_file

from router.config import RouterConfig
from router.recording.recording_file import (
    MAX_RECORDINGS,
    BadRecording,
    RecordedCall,
    Recording,
    RecordingFolder,
    SegmentStart,
    non_secret_settings,
)
from router.recording.recording_scheduler import RecordingScheduler
from router.recording.replay import Replay
from router.request import Request, SamplingParams, Tenant
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult, StepResultRow

SECRET_TOKENS = (987654321, 876543219, 765432198, 654321987)


def run_secret_request():
    """Return a recorded core that processed tokens and texts which must not appear in the file."""
    prompt, generated_token, end, banned = SECRET_TOKENS
    core = ShortSegmentRecorder(SchedulerSettings(), SMALL_MODEL_INFO)
    core.on_shards_ready(SMALL_MODEL_INFO, 1, 0.0)
    core.submit(Request("a", (prompt,) * 40, 40, sampling_key=prompt, end_tokens=frozenset({end}),
                        stop_strings=("a secret",), sampling=SamplingParams(banned_tokens=(banned,)),
                        tenant=Tenant("t")), 0.0)
    for step in range(30):
        plan = core.plan(step / 10)
        token = generated_token if step < 29 else end
        rows = {number: StepResultRow((token,), (-0.123456,)) for number in plan.output_ids}
        core.complete_step(plan.last_message_number, StepResult(1, 0.01, rows, {}), {}, step / 10 + 0.05)
    assert not core.num_unfinished
    return core


def test_file_contains_no_token_and_no_text(tmp_path):
    recording = write_recording_file(run_secret_request().copy_segments(), tmp_path / "file")
    text = recording.path.read_text()
    assert not [secret for secret in (*SECRET_TOKENS, "a secret", "0.123456") if str(secret) in text]


def test_file_contains_segments_and_calls_as_recorded(tmp_path):
    core = run_secret_request()
    items = list(write_recording_file(core.copy_segments(), tmp_path / "file"))
    assert sum(isinstance(item, SegmentStart) for item in items) == len(core.copy_segments()) > 3
    calls = [item for item in items if isinstance(item, RecordedCall)]
    assert len(calls) == sum(len(segment.entries) for segment in core.copy_segments())
    assert [call.method for call in calls[:4]] == ["on_shards_ready", "submit", "plan", "complete_step"]
    assert calls[-1].arguments[3:] == ((), ((1, 0),), (), ())
    assert calls[-1].outcome == (("SequenceFinished", 1, "eos_token"),)


def test_header_contains_settings_and_model_info(tmp_path):
    recording = write_recording_file([], tmp_path / "file", config=RouterConfig(max_batch_size=9))
    assert recording.config.max_batch_size == 9
    assert recording.model_info == SMALL_MODEL_INFO


def test_secret_settings_are_left_out():
    settings = non_secret_settings(RouterConfig(hostname="a.secret.place"))
    assert "hostname" not in settings
    assert settings["prefill_policy"] == "mixed"


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty"), ("no\n", "line 1 is not JSON"), ("[1]\n", "line 1 is no JSON object"),
    ("{}\n", "is no recording: its first line does not say so"),
    ('{"weft_recording": 7}\n', "has format 7, this weft reads 5"),
])
def test_invalid_recording_is_reported_in_one_line(tmp_path, text, message):
    (tmp_path / "file").write_text(text)
    with pytest.raises(BadRecording, match=message):
        Recording(tmp_path / "file")


def test_missing_file_is_reported_in_one_line(tmp_path):
    with pytest.raises(BadRecording, match=r"cannot read .*: No such file"):
        Recording(tmp_path / "file")


@pytest.mark.parametrize(("line", "message"), [
    ("{", "line 2 is not JSON"), ("", "line 2 is empty"), ('{"call": "plan"}', "line 2 is no event of a recording"),
    ('{"at": 1, "names": [5]}', "line 2 is no event of a recording"),
])
def test_invalid_line_is_named(tmp_path, line, message):
    (tmp_path / "file").write_text(json.dumps({"weft_recording": 5}) + f"\n{line}\n")
    with pytest.raises(BadRecording, match=message):
        list(Recording(tmp_path / "file"))


def test_truncated_last_line_is_ignored(tmp_path):
    (tmp_path / "file").write_text(json.dumps({"weft_recording": 5}) + '\n{"at": 1.0}\n{"at": 2')
    recording = Recording(tmp_path / "file")
    assert list(recording) == [RecordedCall("plan", 1.0)]
    assert recording.is_truncated


# -- the folder


@pytest.fixture
def segments():
    core = RecordingScheduler(SchedulerSettings(), SMALL_MODEL_INFO, 300.0, 0.0)
    core.on_shards_ready(SMALL_MODEL_INFO, 1, 0.0)
    return core.copy_segments()


def list_files(folder):
    return sorted(folder.glob("*"))


def write_and_close(recording_folder, segments):
    recording_folder.write_in_background(segments, SMALL_MODEL_INFO, "a test")
    recording_folder.close()


def test_written_recording_can_be_replayed(tmp_path, segments, caplog):
    with caplog.at_level(logging.INFO):
        write_and_close(RecordingFolder(tmp_path / "a" / "b", RouterConfig()), segments)
    path, = list_files(tmp_path / "a" / "b")
    assert Replay(Recording(path)).run().difference is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert caplog.messages == [f"a test: the last 1 events are in {path}"]


def test_oldest_recordings_are_deleted(tmp_path, segments):
    recording_folder = RecordingFolder(tmp_path, RouterConfig())
    (tmp_path / "notes.txt").touch()
    write_and_close(recording_folder, segments)
    oldest, = tmp_path.glob("weft-*")
    for _ in range(MAX_RECORDINGS):
        write_and_close(recording_folder, segments)
    assert len(list_files(tmp_path)) == MAX_RECORDINGS + 1
    assert not oldest.exists()


def test_automatic_recordings_are_rate_limited(tmp_path, segments):
    clock = [0.0]
    recording_folder = RecordingFolder(tmp_path, RouterConfig(), clock=lambda: clock[0])
    for clock[0] in (0.0, 1.0, 599.0, 600.0):
        recording_folder.write_in_background(segments, SMALL_MODEL_INFO, "a test", is_automatic=True)
        recording_folder.close()
    assert len(list_files(tmp_path)) == 2


def test_unwritable_folder_is_logged(tmp_path, segments, caplog):
    (tmp_path / "file").touch()
    write_and_close(RecordingFolder(tmp_path / "file" / "folder", RouterConfig()), segments)
    assert "the recording could not be written to" in caplog.text


def test_unused_recording_folder_closes_at_once(tmp_path):
    RecordingFolder(tmp_path, RouterConfig()).close()
