"""Progress of the start, read from the files of the shards."""

import json
from pathlib import Path

import pytest

from router.startup import Stage, Startup, read_stage


def written(folder: Path, *stages: object) -> Startup:
    files = [folder / str(number) for number in range(len(stages))]
    for file, stage in zip(files, stages, strict=True):
        file.write_text(json.dumps(stage))
    return Startup(map(str, files))


def stage(phase: str, done: int = 0, total: int = 0, seconds: float = 1.0) -> dict[str, object]:
    return {"phase": phase, "done": done, "total": total, "seconds": seconds}


def test_bytes_are_told_with_the_time_that_the_rest_will_take(tmp_path: Path) -> None:
    startup = written(tmp_path, stage("load", 25, 100, 2.0))
    assert startup.told() == {"phase": "load", "bytes": 25, "total": 100, "eta_seconds": 6.0}


def test_what_is_not_known_is_not_told(tmp_path: Path) -> None:
    assert Startup().told() == {"phase": "load"}
    assert written(tmp_path, stage("load", 0, 100)).told() == {"phase": "load", "bytes": 0, "total": 100}
    assert written(tmp_path, stage("check")).told() == {"phase": "check"}


def test_all_shards_are_as_far_as_the_last_of_them(tmp_path: Path) -> None:
    startup = written(tmp_path, stage("load", 50, 100, 2.0), stage("load", 10, 100, 2.0), stage("check"))
    assert startup.told() == {"phase": "load", "bytes": 60, "total": 200, "eta_seconds": 18.0}


def test_shards_that_are_ready_wait_for_the_router(tmp_path: Path) -> None:
    startup = written(tmp_path, stage("ready"), stage("ready"))
    assert startup.is_warm()
    assert startup.told() == {"phase": "warm-up"}


def test_shards_that_write_nothing_are_not_known_to_be_warm(tmp_path: Path) -> None:
    assert not Startup().is_warm()
    assert not written(tmp_path, stage("ready"), stage("warm-up")).is_warm()


@pytest.mark.parametrize("text", ["", "{", "[]", '"load"', '{"phase": "lunch"}', '{"phaze": "load"}'])
def test_what_cannot_be_read_is_the_beginning(tmp_path: Path, text: str) -> None:
    (tmp_path / "stage").write_text(text)
    assert read_stage(tmp_path / "stage") == read_stage(tmp_path / "nothing") == Stage()
