"""Tests of the figures of the benchmark of viewers."""

import pytest

from benchmarks.experiments.live_view_cost import (
    COLUMNS,
    LiveViewCostPoint,
    LiveViewCostSettings,
    make_summary,
)
from benchmarks.experiments.router_cost import RouterCostPoint
from benchmarks.harness.experiment import format_columns


def make_turn(unwatched: float, watched: float, cpu: float = 20.0,
              watched_cpu: float = 21.0) -> LiveViewCostPoint:
    return LiveViewCostPoint(*(RouterCostPoint(64, 2, rate, microseconds, 0.1, 5.0, 5.0, 9.0, 1.5, 0.2)
                         for rate, microseconds in ((unwatched, cpu), (watched, watched_cpu))), 250_000.0)


def test_ratios_are_those_of_turns_side_by_side() -> None:
    turns = [make_turn(1000.0, 1000.0), make_turn(500.0, 490.0), make_turn(800.0, 760.0)]
    summary = make_summary(LiveViewCostSettings(rounds=3), turns)
    assert summary["throughput_ratio"] == {"median": 0.98, "min": 0.95, "max": 1.0}
    assert summary["router_cpu_ratio"]["median"] == pytest.approx(1.05)
    assert (summary["streams"], summary["viewers"]) == (64, 3)


def test_table_has_a_row_for_each_turn() -> None:
    assert format_columns(COLUMNS, [(make_turn(1000.0, 990.0), 250.0)]).splitlines()[1].split() == [
        "1000", "990", "0.990", "20.0", "21.0", "1.050", "250", "0.20"]
