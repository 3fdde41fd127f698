"""Tests of the comparison of two runs that were measured in turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_bench_results import (
    make_bench_result,
    make_sample_result,
    make_streamed_record,
    make_unstreamed_record,
)

from benchmarks.bench.report.server_comparison import (
    MetricComparison,
    compare_metrics,
    format_factor,
    format_ratio_table,
)
from benchmarks.bench.report.summary import LatencyGoal

SLOW_SUMMARY, FAST_SUMMARY = make_sample_result("A", gap=0.02).summary, make_sample_result("B", gap=0.01).summary


def get_ratios_by_name(ratios: list[MetricComparison]) -> dict[str, MetricComparison]:
    return {ratio.name: ratio for ratio in ratios}


def test_ratio_is_of_b_to_a_in_every_turn() -> None:
    comparison = get_ratios_by_name(compare_metrics([(SLOW_SUMMARY, FAST_SUMMARY), (SLOW_SUMMARY, SLOW_SUMMARY),
                                                     (FAST_SUMMARY, SLOW_SUMMARY)]))["between tokens (ITL) p50"]
    assert comparison.ratios_by_turn == pytest.approx((0.5, 1.0, 2.0))
    assert (comparison.median, comparison.least, comparison.most) == pytest.approx((1.0, 0.5, 2.0))


def test_better_direction_is_stated() -> None:
    ratios = get_ratios_by_name(compare_metrics([(SLOW_SUMMARY, FAST_SUMMARY)]))
    assert {name for name, ratio in ratios.items() if ratio.better_when == "higher"} == {"tokens/s", "requests/s"}
    assert {ratio.better_when for name, ratio in ratios.items()
            if name[-3:] in {"p50", "p90", "p95", "p99"}} == {"lower"}


def test_figures_missing_in_one_run_are_not_compared() -> None:
    streamed, not_streamed = (make_bench_result([make_streamed_record()]).summary,
                              make_bench_result([make_unstreamed_record()]).summary)
    assert "first token (TTFT) p50" not in get_ratios_by_name(compare_metrics([(streamed, not_streamed)]))
    ratios = get_ratios_by_name(compare_metrics([(streamed, not_streamed), (streamed, streamed)]))
    assert len(ratios["first token (TTFT) p50"].ratios_by_turn) == 1


def test_ratio_to_zero_is_left_out() -> None:
    none, some = (make_bench_result([make_streamed_record()], goal=LatencyGoal(e2e=limit)).summary
                  for limit in (0.0, 1.0))
    assert "goodput, requests/s" not in get_ratios_by_name(compare_metrics([(none, some)]))
    assert get_ratios_by_name(compare_metrics([(some, none)]))["goodput, requests/s"].ratios_by_turn == (0.0,)


@given(st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_swapped_comparison_gives_the_inverse(one: float, other: float) -> None:
    first, second = (make_bench_result([make_streamed_record(gap=gap)]).summary for gap in (one, other))
    forward, backward = get_ratios_by_name(compare_metrics([(first, second)])), get_ratios_by_name(
        compare_metrics([(second, first)]))
    assert [forward[name].median * backward[name].median for name in forward] == pytest.approx([1.0] * len(forward))


def test_line_shows_median_and_spread() -> None:
    lines = format_ratio_table([MetricComparison("tokens/s", "higher", (1.28, 1.31, 1.35), 3)],
                               ("before", "after")).splitlines()
    assert lines[0].split() == ["after", "/", "before", "median", "least", "to", "most", "turns", "better", "is"]
    assert lines[1].split() == ["tokens/s", "1.31", "(1.28", "to", "1.35)", "3", "higher"]


def test_turns_without_a_figure_are_counted() -> None:
    none, some = (make_bench_result([make_streamed_record()], goal=LatencyGoal(e2e=limit)).summary
                  for limit in (0.0, 1.0))
    [line] = [line for line in format_ratio_table(compare_metrics([(none, some), (some, some)])).splitlines()
              if "goodput" in line]
    assert "1 of 2" in line


def test_small_ratios_are_not_rounded_away() -> None:
    assert [format_factor(factor) for factor in (0.00123, 0.25, 16.6)] == ["0.0012", "0.25", "16.60"]
