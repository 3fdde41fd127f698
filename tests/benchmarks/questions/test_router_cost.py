from dataclasses import replace
from typing import Any

import pytest
from cyclopts import App, CycloptsError

from benchmarks.questions.router_cost import (
    Point,
    Reading,
    Settings,
    idle_share,
    median,
    percentile,
    point,
    steps_within,
    summary,
    table,
)
from benchmarks.questions.router_load import BadAnswer

DEFAULT = Settings()
POINT = Point(streams=64, look_ahead=2, tokens_per_second=12_800.0, router_us_per_token=30.0, shard_idle_share=0.02,
              step_ms=5.1, gap_p50_ms=5.2, gap_p99_ms=6.0, cores=1.0, other_cores=0.0)


def parse(*arguments: str) -> Any:
    app = App(result_action="return_value")
    app.default(keep)
    return app(arguments, exit_on_error=False, print_error=False)


def keep(settings: Settings = DEFAULT) -> Settings:
    return settings


def test_without_arguments_everything_is_measured() -> None:
    assert parse() == DEFAULT


def test_a_point_is_measured_for_every_number() -> None:
    settings = parse("--streams", "1", "64", "--look-ahead", "2", "--seconds", "0.5")
    assert settings == Settings(streams=(1, 64), look_ahead=(2,), seconds=0.5)


@pytest.mark.parametrize("wrong", ["--streams=0", "--look-ahead=3", "--seconds=0", "--repeat=0"])
def test_numbers_that_make_no_sense_are_refused(wrong: str) -> None:
    with pytest.raises(CycloptsError, match=wrong.partition("=")[0]):
        parse(wrong)


def test_only_steps_that_lie_in_the_window_count() -> None:
    assert steps_within([0.0, 1.0, 1.1, 2.0, 2.1, 3.0, 3.1, 4.0], 1.0, 3.5) == [(1.1, 2.0), (2.1, 3.0)]


def test_idle_is_what_lies_between_steps() -> None:
    assert idle_share([(1.0, 2.0), (3.0, 4.0), (4.0, 5.0)]) == pytest.approx(0.25)
    assert idle_share([(1.0, 2.0)]) == 0.0


def test_percentiles() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (51.0, 100.0, 100.0)
    assert percentile([], 0.5) == 0.0


def test_a_point_is_the_difference_between_two_readings() -> None:
    window = Reading(10.0, 1.0, 2.0, 5.0, 1000), Reading(12.0, 1.5, 4.0, 8.0, 11_000)
    one = point((64, 2), window, [9.0, 10.5, 10.5, 11.0, 11.5, 12.0], [0.005])
    assert (one.tokens_per_second, one.router_us_per_token) == (5000.0, 50.0)
    assert one.shard_idle_share == pytest.approx(1 / 3)
    assert (one.step_ms, one.gap_p99_ms, one.cores, one.other_cores) == (500.0, 5.0, 1.0, 0.5)


def test_no_figures_come_from_nothing() -> None:
    now = Reading(10.0, 1.0, 2.0, 5.0, 1000)
    with pytest.raises(BadAnswer, match="no token"):
        point((1, 1), (now, replace(now, time=11.0)), [10.1, 10.2], [])


def test_repetitions_become_medians_field_by_field() -> None:
    others = replace(POINT, router_us_per_token=50.0), replace(POINT, router_us_per_token=20.0, cores=2.0)
    assert median([POINT, *others]) == POINT


def test_the_summary_leads_with_the_figures_of_the_goal() -> None:
    told = summary(Settings(), [replace(POINT, look_ahead=1, router_us_per_token=99.0), POINT])
    assert (told["router_us_per_token"], told["shard_idle_share"], len(told["points"])) == (30.0, 0.02, 2)
    assert summary(Settings(), [])["router_us_per_token"] is None


def test_the_table_has_a_line_for_every_point() -> None:
    head, line = table([POINT]).splitlines()
    assert head.split()[:2] == ["streams", "look-ahead"]
    assert line.split()[:5] == ["64", "2", "12800", "30.0", "2.0"]
