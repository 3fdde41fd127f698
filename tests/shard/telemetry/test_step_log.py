from array import array
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from shard.pending_result import PendingResult
from shard.telemetry.step_log import open_step_log


def read_times(path: Path) -> "array[float]":
    return array("d", path.read_bytes())


def test_start_and_end_of_every_step_are_logged(tmp_path: Path) -> None:
    begin = monotonic()
    with open_step_log(str(tmp_path / "log")) as call_verb:
        assert [call_verb(str, number) for number in (1, 2)] == ["1", "2"]
        times = read_times(tmp_path / "log")
    assert len(times) == 4
    assert sorted([begin, *times]) == [begin, *times]


def test_failed_step_is_logged_too(tmp_path: Path) -> None:
    def fail(request: Any) -> None:
        raise ValueError(request)

    with open_step_log(str(tmp_path / "log")) as call_verb, pytest.raises(ValueError, match="1"):
        call_verb(fail, 1)
    assert len(read_times(tmp_path / "log")) == 2


def test_deferred_step_ends_when_it_is_finished(tmp_path: Path) -> None:
    with open_step_log(str(tmp_path / "log")) as call_verb:
        pending_result = call_verb(lambda request: PendingResult(lambda: None, lambda: request), 7)
        assert not read_times(tmp_path / "log")
        finish_called_at = monotonic()
        assert pending_result.finish() == 7
        begin, end = read_times(tmp_path / "log")
    assert begin <= finish_called_at <= end


def test_nothing_is_logged_without_a_path() -> None:
    with open_step_log("") as call_verb:
        assert call_verb(str, 1) == "1"
