from math import nan
from pathlib import Path

import pytest
from support.fake_study import RUN_METADATA, SMALL_SCOPE, run_fake_study

from benchmarks.study.compared_policies import format_policy_label
from benchmarks.study.report import (
    POLICY_COLUMNS,
    describe_steal_time,
    describe_study_reproduction,
    format_all_tables,
    format_band,
    format_markdown_table,
    format_readme,
    list_distinct_metadata,
)
from benchmarks.study.statistics import ConfidenceBand
from benchmarks.study.study_summary import summarize_study


def test_figure_shows_its_band_if_there_is_one() -> None:
    assert format_band(ConfidenceBand(2.0, 1.5, 2.5, (1.8, 2.0, 2.2)), 1) == "2.0 ± 0.5"
    assert format_band(ConfidenceBand.from_values([1.8, 2.2]), 1) == "2.0"  # ± 2.5 would be true, and of no use
    assert (format_band(ConfidenceBand(2.0, None, None, (2.0,)), 2), format_band(1.234, 2),
            format_band(nan, 2)) == ("2.00", "1.23", "-")


def test_grid_is_a_markdown_table() -> None:
    assert format_markdown_table(["policy", "s"], [["none", "1.0"]]) == "| policy | s |\n| --- | ---: |\n| none | 1.0 |"


@pytest.mark.slow
def test_table_has_every_figure_of_every_policy() -> None:
    text = format_all_tables(summarize_study(run_fake_study(SMALL_SCOPE)))
    assert text.count("\n### ") + text.startswith("### ") == 4
    assert all(f" {name} |" in text for name, _, _ in POLICY_COLUMNS)
    for policy in ("nobatch", "static", "dynamic", "none", "static-1", "pause", "mixed", "batch-4"):
        assert f"| {format_policy_label(policy)} |" in text


@pytest.mark.slow
def test_page_shows_commands_and_plots(tmp_path: Path) -> None:
    text = format_readme(summarize_study(run_fake_study(SMALL_SCOPE)), [RUN_METADATA, RUN_METADATA],
                         [tmp_path / "plots" / "one.png"], tmp_path)
    assert text.count("- 2025-01-31, `weft study batching`, on a machine, with weft 0.1.0\n") == 1
    assert "![one](plots/one.png)" in text
    assert "under `csv/`" in text


def test_page_without_the_compat_part_mentions_no_csv(tmp_path: Path) -> None:
    text = format_readme({"failed": {}, "shapes": {"simulated": {}}}, [RUN_METADATA], [], tmp_path)
    assert "in `summary.json`.\n" in text
    assert "csv" not in text


def test_page_lists_failed_requests(tmp_path: Path) -> None:
    text = format_readme({"failed": {"sweep/simulated-poisson-none-seed0": 3}, "shapes": {}}, [RUN_METADATA], [],
                         tmp_path)
    assert "Failed requests, which are left out of all latencies: 3 in sweep/simulated-poisson-none-seed0." in text


@pytest.mark.parametrize(("crossover", "text"), [
    (0.8, "for requests above 0.80 of the largest"), (1.2, "for no request is it the slower one")])
def test_compat_text_says_when_dynamic_batching_is_slower(crossover: float, text: str) -> None:
    assert text in describe_study_reproduction({"continuous_latency_correlation": 1.0,
                                    "continuous_latency_correlation_of_seeds": ConfidenceBand.from_values([1.0]),
                                    "continuous_mean_latency_ratio": ConfidenceBand.from_values([0.5]),
                                    "crossover": crossover})


def test_every_command_is_listed_once() -> None:
    other = {**RUN_METADATA, "command": "weft study batching --seeds 2"}
    metadata_list = list_distinct_metadata([{**RUN_METADATA, "stolen": 0.1}, other, RUN_METADATA])
    assert [one["command"] for one in metadata_list] == ["weft study batching", "weft study batching --seeds 2"]
    assert {"date", "hardware", "versions", "command"} == metadata_list[0].keys()


def test_page_reports_steal_time() -> None:
    assert describe_steal_time([RUN_METADATA, {**RUN_METADATA, "stolen": 0.0}]) == ""
    assert describe_steal_time([{**RUN_METADATA, "stolen": 0.01}, {**RUN_METADATA, "stolen": 0.04}]) == (
        "While runs were measured, others had 2.5 % of this virtual machine's processors; in the worst run 4.0 %.")


def test_study_without_the_compat_part_has_an_empty_table() -> None:
    assert format_all_tables({"shapes": {"simulated": {}}}) == ""
