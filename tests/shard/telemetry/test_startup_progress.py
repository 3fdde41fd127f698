"""Startup progress, as other processes read it."""

import json
import os
from pathlib import Path

from shard.telemetry.startup_progress import (
    CHECK_PHASE,
    LOAD_PHASE,
    MIN_WRITE_INTERVAL_SECONDS,
    ProgressFile,
    ProgressPipe,
    ignore_progress,
    open_progress_file,
)


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def read_progress(path: Path) -> tuple[str, int, int, float]:
    stage = json.loads(path.read_text())
    return stage["phase"], stage["done"], stage["total"], stage["seconds"]


def test_phase_and_its_seconds_are_written(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "progress"
    progress = ProgressFile(str(path), clock)
    progress(LOAD_PHASE, 0, 10)
    clock.now += 4.0
    progress(LOAD_PHASE, 5, 10)
    assert read_progress(path) == (LOAD_PHASE, 5, 10, 4.0)
    progress(CHECK_PHASE, 0, 0)
    assert read_progress(path) == (CHECK_PHASE, 0, 0, 0.0)
    assert [file.name for file in tmp_path.iterdir()] == ["progress"]


def test_phase_is_rarely_rewritten_but_its_end_at_once(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "progress"
    progress = ProgressFile(str(path), clock)
    progress(LOAD_PHASE, 1, 10)
    clock.now += MIN_WRITE_INTERVAL_SECONDS / 2
    progress(LOAD_PHASE, 2, 10)
    assert read_progress(path)[1] == 1
    progress(LOAD_PHASE, 10, 10)
    assert read_progress(path)[1] == 10


def test_unwritable_file_is_ignored(tmp_path: Path) -> None:
    ProgressFile(str(tmp_path / "nowhere" / "progress"))(LOAD_PHASE, 0, 0)


def test_progress_is_ignored_without_a_file() -> None:
    with open_progress_file("") as on_progress:
        assert on_progress is ignore_progress


def test_file_is_removed_at_the_end(tmp_path: Path) -> None:
    with open_progress_file(str(tmp_path / "progress")) as on_progress:
        on_progress(LOAD_PHASE, 0, 0)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


# -- lines


def get_pipe_lines(*calls: tuple[str, int, int]) -> list[str]:
    read, write = os.pipe()
    progress_pipe = ProgressPipe(write)
    for call in calls:
        progress_pipe(*call)
    os.close(write)
    with open(read) as pipe:
        return pipe.read().splitlines()


def test_pipe_line_has_phase_done_and_total() -> None:
    assert get_pipe_lines(("load", 3, 10), ("check", 0, 0)) == ["progress load 3 10", "progress check 0 0"]


def test_pipe_gets_one_line_for_every_percent() -> None:
    written_lines = get_pipe_lines(*(("load", done, 10_000) for done in range(1, 10_001)))
    assert len(written_lines) == 101
    assert written_lines[-1] == "progress load 10000 10000"


def test_closed_pipe_is_ignored() -> None:
    read, write = os.pipe()
    os.close(read)
    ProgressPipe(write)("load", 1, 2)
    os.close(write)


def test_nothing_is_written_without_a_descriptor() -> None:
    ProgressPipe(-1)("load", 1, 2)


def test_callback_gets_every_progress_report() -> None:
    reports: list[tuple[str, int, int]] = []
    progress_pipe = ProgressPipe(-1, lambda *report: reports.append(report))
    progress_pipe("load", 1, 1000)
    progress_pipe("load", 2, 1000)
    assert reports == [("load", 1, 1000), ("load", 2, 1000)]
