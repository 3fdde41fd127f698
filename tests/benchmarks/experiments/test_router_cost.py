from dataclasses import replace
from typing import Any

import pytest
from cyclopts import App, CycloptsError

from benchmarks.experiments.router_cost import (
    CpuUsageSnapshot,
    RouterCostPoint,
    RouterCostSettings,
    compute_idle_share,
    format_table,
    make_point,
    make_summary,
    select_steps_within,
)
from benchmarks.harness.experiment import median_point
from benchmarks.harness.stream_load import InvalidAnswerError

DEFAULT_SETTINGS = RouterCostSettings()
COST_POINT = RouterCostPoint(streams=64, look_ahead=2, tokens_per_second=12_800.0, router_us_per_token=30.0,
                             shard_idle_share=0.02, step_ms=5.1, gap_p50_ms=5.2, gap_p99_ms=6.0, cores=1.0,
                             other_cores=0.0)


def parse_settings(*arguments: str) -> Any:
    app = App(result_action="return_value")
    app.default(return_settings)
    return app(arguments, exit_on_error=False, print_error=False)


def return_settings(settings: RouterCostSettings = DEFAULT_SETTINGS) -> RouterCostSettings:
    return settings


def test_defaults_measure_everything() -> None:
    assert parse_settings() == DEFAULT_SETTINGS


def test_several_numbers_are_parsed_into_settings() -> None:
    settings = parse_settings("--streams", "1", "64", "--look-ahead", "2", "--seconds", "0.5")
    assert settings == RouterCostSettings(streams=(1, 64), look_ahead=(2,), seconds=0.5)


@pytest.mark.parametrize("wrong", ["--streams=0", "--look-ahead=3", "--seconds=0", "--repeat=0"])
def test_invalid_numbers_are_rejected(wrong: str) -> None:
    with pytest.raises(CycloptsError, match=wrong.partition("=")[0]):
        parse_settings(wrong)


def test_only_steps_within_the_window_count() -> None:
    assert select_steps_within([0.0, 1.0, 1.1, 2.0, 2.1, 3.0, 3.1, 4.0], 1.0, 3.5) == [(1.1, 2.0), (2.1, 3.0)]


def test_idle_share_is_the_time_between_steps() -> None:
    assert compute_idle_share([(1.0, 2.0), (3.0, 4.0), (4.0, 5.0)]) == pytest.approx(0.25)
    assert compute_idle_share([(1.0, 2.0)]) == 0.0


def test_point_is_the_difference_of_two_readings() -> None:
    window = CpuUsageSnapshot(10.0, 1.0, 2.0, 5.0, 1000), CpuUsageSnapshot(12.0, 1.5, 4.0, 8.0, 11_000)
    one = make_point((64, 2), window, [9.0, 10.5, 10.5, 11.0, 11.5, 12.0], [0.005])
    assert (one.tokens_per_second, one.router_us_per_token) == (5000.0, 50.0)
    assert one.shard_idle_share == pytest.approx(1 / 3)
    assert (one.step_ms, one.gap_p99_ms, one.cores, one.other_cores) == (500.0, 5.0, 1.0, 0.5)


def test_window_without_tokens_is_an_error() -> None:
    reading = CpuUsageSnapshot(10.0, 1.0, 2.0, 5.0, 1000)
    with pytest.raises(InvalidAnswerError, match="no token"):
        make_point((1, 1), (reading, replace(reading, monotonic_seconds=11.0)), [10.1, 10.2], [])


def test_repetitions_become_medians_per_field() -> None:
    others = replace(COST_POINT, router_us_per_token=50.0), replace(COST_POINT, router_us_per_token=20.0, cores=2.0)
    assert median_point([COST_POINT, *others]) == COST_POINT


def test_summary_uses_the_goal_point() -> None:
    summary = make_summary(RouterCostSettings(),
                           [replace(COST_POINT, look_ahead=1, router_us_per_token=99.0), COST_POINT])
    assert (summary["router_us_per_token"], summary["shard_idle_share"], len(summary["points"])) == (30.0, 0.02, 2)
    assert make_summary(RouterCostSettings(), [])["router_us_per_token"] is None


def test_table_has_a_line_for_every_point() -> None:
    head, line = format_table([COST_POINT]).splitlines()
    assert head.split()[:2] == ["streams", "look-ahead"]
    assert line.split()[:5] == ["64", "2", "12800", "30.0", "2.0"]
