"""Tests of the table of figures for the terminal."""

from math import nan

import pytest
from support.fake_bench_results import (
    WINDOW_SECONDS,
    make_bench_result,
    make_rejected_record,
    make_sample_result,
    make_streamed_record,
    make_unstreamed_record,
)

from benchmarks.bench.report.summary import LatencyGoal
from benchmarks.bench.report.table import (
    MAX_ERROR_CHARS,
    count_errors,
    format_error,
    format_headline,
    format_number,
    format_table,
    make_table_rows,
)


def get_figures(*results) -> dict[str, list[str]]:
    return {name: values for name, *values in make_table_rows(results)}


def test_table_has_a_column_for_each_run() -> None:
    figures = get_figures(make_sample_result("A"), make_sample_result("B", gap=0.02))
    assert figures[""] == ["A", "B"]
    assert figures["between tokens (ITL) p50, ms"] == ["10.0", "20.0"]
    assert figures["first token (TTFT) p99, ms"] == ["89.0", "89.0"]
    assert (figures["requests"], figures["failed"]) == (["41", "41"], ["1", "1"])


def test_headline_has_the_figures_that_matter_most() -> None:
    assert format_headline(make_sample_result("A")).partition(" tokens/s; ")[2] == (
        "first token 69.0 ms (p50), 89.0 ms (p99); between tokens 10.0 ms (p99); 1 of 41 failed")
    with_goal = make_bench_result([make_streamed_record()], goal=LatencyGoal(ttft=1.0))
    assert "; goodput 0.1 requests/s" in format_headline(with_goal)
    assert format_headline(make_bench_result([make_rejected_record()])) == "0 tokens/s; 1 of 1 failed"


def test_table_has_a_row_for_each_figure() -> None:
    names = set(get_figures(make_bench_result([make_streamed_record()], goal=LatencyGoal(ttft=1.0))))
    latencies = "first token (TTFT)", "between tokens (ITL)", "mean per token (TPOT)", "end to end"
    assert {f"{name} p{share}, ms" for name in latencies for share in (50, 90, 95, 99)} <= names
    assert {"tokens/s", "requests/s", "goodput, requests/s", "fairness (Jain's index)",
            "load generator, us a token"} <= names


def test_figures_missing_in_all_runs_are_left_out() -> None:
    assert not {"goodput, requests/s",
                "first token (TTFT) p50, ms"} & set(get_figures(make_bench_result([make_unstreamed_record()])))
    figures = get_figures(make_bench_result([make_unstreamed_record()]),
                          make_bench_result([make_streamed_record()], overhead={"ms late": 0.3}))
    assert figures["first token (TTFT) p50, ms"] == ["-", "100"]
    assert figures["load generator, ms late"] == ["-", "0.3"]


def test_errors_are_listed_by_frequency() -> None:
    records = [*[make_rejected_record(error="busy")] * 3, *[make_rejected_record(error="gone")] * 5,
               make_rejected_record(WINDOW_SECONDS[1], "too late"), make_streamed_record()]
    assert count_errors(make_bench_result(records)).most_common() == [("gone", 5), ("busy", 3)]
    assert format_table([make_bench_result(records)]).splitlines()[-2:] == ["A: 5 failed: gone", "A: 3 failed: busy"]


def test_server_text_is_one_safe_line() -> None:
    assert format_error("no\n  room\x1b[2J here") == "no room [2J here"
    assert len(format_error("x" * 10_000)) == MAX_ERROR_CHARS + 4


@pytest.mark.parametrize(("value", "text"), [
    (nan, "-"), (None, "-"), (3, "3"), (12345, "12345"), (12345.6, "12346"), (0.9876, "0.988"), (99.44, "99.4")])
def test_figures_have_three_significant_digits(value: float | None, text: str) -> None:
    assert format_number(value) == text


def test_columns_are_aligned() -> None:
    lines = format_table([make_bench_result([make_streamed_record()])]).splitlines()
    assert len({len(line) for line in lines}) == 1
