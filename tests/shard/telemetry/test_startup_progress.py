"""Startup progress, as other processes read it."""

import json
import os
from pathlib import Path

from shard.telemetry.startup_progress import CHECK, LOAD, SELDOM, Lines, Progress, telling, untold


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(path: Path) -> tuple[str, int, int, float]:
    stage = json.loads(path.read_text())
    return stage["phase"], stage["done"], stage["total"], stage["seconds"]


def test_phase_and_seconds_of_it_are_written(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "progress"
    progress = Progress(str(path), clock)
    progress(LOAD, 0, 10)
    clock.now += 4.0
    progress(LOAD, 5, 10)
    assert told(path) == (LOAD, 5, 10, 4.0)
    progress(CHECK, 0, 0)
    assert told(path) == (CHECK, 0, 0, 0.0)
    assert [file.name for file in tmp_path.iterdir()] == ["progress"]


def test_the_same_phase_is_written_seldom_but_its_end_at_once(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "progress"
    progress = Progress(str(path), clock)
    progress(LOAD, 1, 10)
    clock.now += SELDOM / 2
    progress(LOAD, 2, 10)
    assert told(path)[1] == 1
    progress(LOAD, 10, 10)
    assert told(path)[1] == 10


def test_that_nothing_can_be_written_stops_nobody(tmp_path: Path) -> None:
    Progress(str(tmp_path / "nowhere" / "progress"))(LOAD, 0, 0)


def test_without_a_file_nothing_is_told() -> None:
    with telling("") as on_progress:
        assert on_progress is untold


def test_the_file_goes_with_the_shard(tmp_path: Path) -> None:
    with telling(str(tmp_path / "progress")) as on_progress:
        on_progress(LOAD, 0, 0)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


# -- lines


def lines_of(*calls: tuple[str, int, int]) -> list[str]:
    read, write = os.pipe()
    lines = Lines(write)
    for call in calls:
        lines(*call)
    os.close(write)
    with open(read) as heard:
        return heard.read().splitlines()


def test_a_line_has_phase_done_and_total() -> None:
    assert lines_of(("load", 3, 10), ("check", 0, 0)) == ["progress load 3 10", "progress check 0 0"]


def test_there_is_one_line_for_every_percent() -> None:
    lines = lines_of(*(("load", done, 10_000) for done in range(1, 10_001)))
    assert len(lines) == 101
    assert lines[-1] == "progress load 10000 10000"


def test_whoever_is_gone_does_not_stop_the_start() -> None:
    read, write = os.pipe()
    os.close(read)
    Lines(write)("load", 1, 2)
    os.close(write)


def test_without_a_descriptor_nothing_is_told() -> None:
    Lines(-1)("load", 1, 2)


def test_others_may_hear_the_same() -> None:
    heard: list[tuple[str, int, int]] = []
    lines = Lines(-1, lambda *told: heard.append(told))
    lines("load", 1, 1000)
    lines("load", 2, 1000)
    assert heard == [("load", 1, 1000), ("load", 2, 1000)]
