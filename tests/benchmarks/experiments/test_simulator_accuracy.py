"""Tests of the benchmark of the simulator: the order of its runs and the definition of its error."""

from pathlib import Path

import pytest

from benchmarks.experiments import simulator_accuracy
from benchmarks.experiments.simulator_accuracy import (
    SimulationComparison,
    SimulatorAccuracySettings,
    draw_requests,
    record_runs,
)


def test_runs_alternate_and_parts_have_their_own_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def fake_record(settings: SimulatorAccuracySettings, model: str, seed: int, folder: Path) -> Path:
        seeds.append(seed)
        return folder

    monkeypatch.setattr(simulator_accuracy, "record_part", fake_record)
    monkeypatch.setattr(simulator_accuracy, "make_random_checkpoint", lambda shape, folder: folder)
    runs = record_runs(SimulatorAccuracySettings(runs=2, turns=3), tmp_path)
    assert [[part.name for part in run] for run in runs] == [["0", "2", "4"], ["1", "3", "5"]]
    assert seeds == [0, 1, 3, 2, 4, 5]


def test_requests_of_a_part_rise_in_time_with_prompts_of_their_own() -> None:
    settings = SimulatorAccuracySettings(requests=100, turns=3, words=(2, 2))
    requests = draw_requests(settings, seed=1)
    times = [request.at or 0.0 for request in requests]
    assert (len(requests), times) == (34, sorted(times))
    assert len({request.prompt for request in requests}) == 34
    assert {len(request.prompt.split()) for request in requests} == {3}
    assert draw_requests(settings, seed=1) == requests


def test_run_error_is_of_all_its_parts_together() -> None:
    first, second = SimulationComparison([1.0, 2.0], [1.0, 3.0]), SimulationComparison([4.0], [5.0, 6.0])
    together = SimulationComparison.pool([first, second])
    assert together == SimulationComparison([1.0, 2.0, 4.0], [1.0, 3.0, 5.0, 6.0])
    assert together.relative_error(99) == pytest.approx(0.5)


def test_line_shows_actual_and_simulated_percentiles() -> None:
    assert SimulationComparison([0.1] * 100, [0.11] * 200).format_line() == (
        "p50 100.0 ms, simulated 110.0 (+10.0%), p99 100.0 ms, simulated 110.0 (+10.0%)")
