"""Files of recordings: their folder, number and rate, and errors."""

import logging

import pytest
from support.recordings import FACTS

from router.config import RouterConfig
from router.recording.file import Recording
from router.recording.recorder import Recorder
from router.recording.replay import Replay
from router.recording.shelf import KEPT, Shelf
from router.scheduler.settings import Policy


@pytest.fixture
def segments():
    core = Recorder(Policy(), FACTS, 300.0, 0.0)
    core.shards_ready(FACTS, 1, 0.0)
    return core.segments()


def files(folder):
    return sorted(folder.glob("*"))


def put(shelf, segments):
    shelf.put(segments, FACTS, "a test")
    shelf.close()


def test_what_is_put_there_can_be_replayed(tmp_path, segments, caplog):
    with caplog.at_level(logging.INFO):
        put(Shelf(tmp_path / "a" / "b", RouterConfig()), segments)
    path, = files(tmp_path / "a" / "b")
    assert Replay(Recording(path)).run().difference is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert caplog.messages == [f"a test: the last 1 events are in {path}"]


def test_the_oldest_leave(tmp_path, segments):
    shelf = Shelf(tmp_path, RouterConfig())
    (tmp_path / "notes.txt").touch()
    put(shelf, segments)
    oldest, = tmp_path.glob("weft-*")
    for _ in range(KEPT):
        put(shelf, segments)
    assert len(files(tmp_path)) == KEPT + 1
    assert not oldest.exists()


def test_what_nobody_asked_for_is_not_written_often(tmp_path, segments):
    clock = [0.0]
    shelf = Shelf(tmp_path, RouterConfig(), now=lambda: clock[0])
    for clock[0] in (0.0, 1.0, 599.0, 600.0):
        shelf.put_unasked(segments, FACTS, "a test")
        shelf.close()
    assert len(files(tmp_path)) == 2


def test_a_folder_that_cannot_be_is_a_line_in_the_log(tmp_path, segments, caplog):
    (tmp_path / "file").touch()
    put(Shelf(tmp_path / "file" / "folder", RouterConfig()), segments)
    assert "the recording could not be written to" in caplog.text


def test_a_shelf_that_nothing_was_put_on_is_closed_at_once(tmp_path):
    Shelf(tmp_path, RouterConfig()).close()
