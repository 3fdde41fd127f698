"""Tests of the benchmark of the simulator: the order of its runs and the definition of its error."""

from pathlib import Path

import pytest

from benchmarks.questions import simulator_accuracy
from benchmarks.questions.simulator_accuracy import Foreseen, Settings, recordings


def test_runs_take_turns_there_and_back_and_no_part_has_the_requests_of_another(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def record(settings: Settings, model: str, seed: int, folder: Path) -> Path:
        asked.append(seed)
        return folder

    monkeypatch.setattr(simulator_accuracy, "record", record)
    monkeypatch.setattr(simulator_accuracy, "make", lambda shape, folder: folder)
    runs = recordings(Settings(runs=2, turns=3), tmp_path)
    assert [[part.name for part in run] for run in runs] == [["0", "2", "4"], ["1", "3", "5"]]
    assert asked == [0, 1, 3, 2, 4, 5]


def test_a_run_is_judged_by_all_its_parts_together() -> None:
    first, second = Foreseen([1.0, 2.0], [1.0, 3.0]), Foreseen([4.0], [5.0, 6.0])
    together = Foreseen.together([first, second])
    assert together == Foreseen([1.0, 2.0, 4.0], [1.0, 3.0, 5.0, 6.0])
    assert together.error(99) == pytest.approx(0.5)


def test_a_line_says_what_was_and_what_was_foreseen() -> None:
    assert Foreseen([0.1] * 100, [0.11] * 200).line() == (
        "p50 100.0 ms, simulated 110.0 (+10.0%), p99 100.0 ms, simulated 110.0 (+10.0%)")
