"""Progress of the start, read from the files of the shards."""

import json
from pathlib import Path

import pytest

from router.shards.startup_progress import ProgressByPhase, ShardStartupProgress, load_shard_progress


def make_startup_progress(folder: Path, *stages: object) -> ProgressByPhase:
    files = [folder / str(number) for number in range(len(stages))]
    for file, stage in zip(files, stages, strict=True):
        file.write_text(json.dumps(stage))
    return ProgressByPhase(map(str, files))


def make_stage(phase: str, done: int = 0, total: int = 0, seconds: float = 1.0) -> dict[str, object]:
    return {"phase": phase, "done": done, "total": total, "seconds": seconds}


def test_loading_progress_reports_bytes_and_remaining_time(tmp_path: Path) -> None:
    startup = make_startup_progress(tmp_path, make_stage("load", 25, 100, 2.0))
    assert startup.to_json() == {"phase": "load", "bytes": 25, "total": 100, "eta_seconds": 6.0}


def test_unknown_values_are_left_out(tmp_path: Path) -> None:
    assert ProgressByPhase().to_json() == {"phase": "load"}
    assert make_startup_progress(tmp_path,
                                 make_stage("load", 0, 100)).to_json() == {"phase": "load", "bytes": 0, "total": 100}
    assert make_startup_progress(tmp_path, make_stage("check")).to_json() == {"phase": "check"}


def test_progress_of_all_shards_is_that_of_the_slowest(tmp_path: Path) -> None:
    startup = make_startup_progress(tmp_path, make_stage("load", 50, 100, 2.0), make_stage("load", 10, 100, 2.0),
                                    make_stage("check"))
    assert startup.to_json() == {"phase": "load", "bytes": 60, "total": 200, "eta_seconds": 18.0}


def test_ready_shards_wait_for_the_router(tmp_path: Path) -> None:
    startup = make_startup_progress(tmp_path, make_stage("ready"), make_stage("ready"))
    assert startup.is_warm()
    assert startup.to_json() == {"phase": "warm-up"}


def test_shards_without_progress_files_are_not_known_to_be_warm(tmp_path: Path) -> None:
    assert not ProgressByPhase().is_warm()
    assert not make_startup_progress(tmp_path, make_stage("ready"), make_stage("warm-up")).is_warm()


@pytest.mark.parametrize("text", ["", "{", "[]", '"load"', '{"phase": "lunch"}', '{"phaze": "load"}'])
def test_unreadable_progress_file_means_the_initial_phase(tmp_path: Path, text: str) -> None:
    (tmp_path / "stage").write_text(text)
    assert (load_shard_progress(tmp_path / "stage") == load_shard_progress(tmp_path / "nothing")
            == ShardStartupProgress())
