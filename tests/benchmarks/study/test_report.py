from math import nan
from pathlib import Path

import pytest
from support.fake_study import MADE, SCOPE, study

from benchmarks.study.arithmetic import Band
from benchmarks.study.figures import summary
from benchmarks.study.policies import words
from benchmarks.study.report import COLUMNS, compat_words, figure, grid, page, sources, table, with_stolen


def test_a_figure_has_its_band_if_there_is_one() -> None:
    assert figure(Band(2.0, 1.5, 2.5, (1.8, 2.0, 2.2)), 1) == "2.0 ± 0.5"
    assert figure(Band.of([1.8, 2.2]), 1) == "2.0"  # ± 2.5 would be true, and of no use
    assert (figure(Band(2.0, None, None, (2.0,)), 2), figure(1.234, 2), figure(nan, 2)) == ("2.00", "1.23", "-")


def test_a_grid_is_markdown() -> None:
    assert grid(["policy", "s"], [["none", "1.0"]]) == "| policy | s |\n| --- | ---: |\n| none | 1.0 |"


@pytest.mark.slow
def test_the_table_tells_every_figure_of_every_policy() -> None:
    text = table(summary(study(SCOPE)))
    assert text.count("\n### ") + text.startswith("### ") == 4
    assert all(f" {name} |" in text for name, _, _ in COLUMNS)
    for policy in ("nobatch", "static", "dynamic", "none", "static-1", "pause", "mixed", "batch-4"):
        assert f"| {words(policy)} |" in text


@pytest.mark.slow
def test_the_page_says_what_was_run_and_shows_the_plots(tmp_path: Path) -> None:
    text = page(summary(study(SCOPE)), [MADE, MADE], [tmp_path / "plots" / "one.png"], tmp_path)
    assert text.count("- 2025-01-31, `weft study batching`, on a machine, with weft 0.1.0\n") == 1
    assert "![one](plots/one.png)" in text
    assert "under `csv/`" in text


def test_a_page_without_the_studys_mode_speaks_of_no_csv(tmp_path: Path) -> None:
    text = page({"failed": {}, "shapes": {"simulated": {}}}, [MADE], [], tmp_path)
    assert "in `summary.json`.\n" in text
    assert "csv" not in text


def test_the_page_says_what_failed(tmp_path: Path) -> None:
    text = page({"failed": {"sweep/simulated-poisson-none-seed0": 3}, "shapes": {}}, [MADE], [], tmp_path)
    assert "Failed requests, which are left out of all latencies: 3 in sweep/simulated-poisson-none-seed0." in text


@pytest.mark.parametrize(("crossover", "said"), [
    (0.8, "for requests above 0.80 of the largest"), (1.2, "for no request is it the slower one")])
def test_it_is_said_for_whom_dynamic_batching_is_slower(crossover: float, said: str) -> None:
    assert said in compat_words({
        "continuous_latency_correlation": 1.0, "continuous_latency_correlation_of_seeds": Band.of([1.0]),
        "continuous_mean_latency_ratio": Band.of([0.5]), "crossover": crossover})


def test_every_command_is_told_once() -> None:
    other = {**MADE, "command": "weft study batching --seeds 2"}
    found = sources([{**MADE, "stolen": 0.1}, other, MADE])
    assert [one["command"] for one in found] == ["weft study batching", "weft study batching --seeds 2"]
    assert {"date", "hardware", "versions", "command"} == found[0].keys()


def test_the_page_says_whether_others_had_the_processors() -> None:
    assert with_stolen([MADE, {**MADE, "stolen": 0.0}]) == ""
    assert with_stolen([{**MADE, "stolen": 0.01}, {**MADE, "stolen": 0.04}]) == (
        "While runs were measured, others had 2.5 % of this virtual machine's processors; in the worst run 4.0 %.")


def test_a_study_without_the_studys_mode_has_no_words_about_it() -> None:
    assert table({"shapes": {"simulated": {}}}) == ""
