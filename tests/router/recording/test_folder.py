"""Files of recordings: their folder, number and rate, and errors."""

import logging

import pytest
from support.scheduling.recordings import SMALL_MODEL_INFO

from router.config import RouterConfig
from router.recording.file import Recording
from router.recording.folder import MAX_RECORDINGS, RecordingFolder
from router.recording.recorder import RecordingScheduler
from router.recording.replay import Replay
from router.scheduler.settings import SchedulerSettings


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
        recording_folder.write_automatic(segments, SMALL_MODEL_INFO, "a test")
        recording_folder.close()
    assert len(list_files(tmp_path)) == 2


def test_unwritable_folder_is_logged(tmp_path, segments, caplog):
    (tmp_path / "file").touch()
    write_and_close(RecordingFolder(tmp_path / "file" / "folder", RouterConfig()), segments)
    assert "the recording could not be written to" in caplog.text


def test_unused_recording_folder_closes_at_once(tmp_path):
    RecordingFolder(tmp_path, RouterConfig()).close()
