from array import array
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from shard.deferred import Later
from shard.telemetry.step_log import timing


def read(path: Path) -> "array[float]":
    return array("d", path.read_bytes())


def test_every_step_leaves_its_begin_and_its_end(tmp_path: Path) -> None:
    begin = monotonic()
    with timing(str(tmp_path / "log")) as run_step:
        assert [run_step(str, number) for number in (1, 2)] == ["1", "2"]
        times = read(tmp_path / "log")
    assert len(times) == 4
    assert sorted([begin, *times]) == [begin, *times]


def test_a_step_that_fails_is_timed_too(tmp_path: Path) -> None:
    def fail(request: Any) -> None:
        raise ValueError(request)

    with timing(str(tmp_path / "log")) as run_step, pytest.raises(ValueError, match="1"):
        run_step(fail, 1)
    assert len(read(tmp_path / "log")) == 2


def test_one_that_is_answered_later_ends_then(tmp_path: Path) -> None:
    with timing(str(tmp_path / "log")) as run_step:
        later = run_step(lambda request: Later(lambda: None, lambda: request), 7)
        assert not read(tmp_path / "log")
        begun = monotonic()
        assert later.finish() == 7
        begin, end = read(tmp_path / "log")
    assert begin <= begun <= end


def test_without_a_path_nothing_is_timed() -> None:
    with timing("") as run_step:
        assert run_step(str, 1) == "1"
