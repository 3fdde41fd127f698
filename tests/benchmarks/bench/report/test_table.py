"""Tests of the table of figures for the terminal."""

from math import nan

import pytest
from support.fake_bench_results import WINDOW, answer, refusal, result, run, whole

from benchmarks.bench.report.summary import Goal
from benchmarks.bench.report.table import LONGEST, errors, number, readable, rows, table


def figures(*results) -> dict[str, list[str]]:
    return {name: values for name, *values in rows(results)}


def test_there_is_a_column_for_each_run() -> None:
    made = figures(run("A"), run("B", gap=0.02))
    assert made[""] == ["A", "B"]
    assert made["between tokens p50, ms"] == ["10.0", "20.0"]
    assert made["first token p99, ms"] == ["89.0", "89.0"]
    assert (made["requests"], made["failed"]) == (["41", "41"], ["1", "1"])


def test_there_is_a_row_for_each_figure() -> None:
    names = set(figures(result([answer()], goal=Goal(ttft=1.0))))
    assert {f"{name} p{share}, ms" for name in ("first token", "between tokens", "per token", "end to end")
            for share in (50, 90, 95, 99)} <= names
    assert {"tokens/s", "requests/s", "goodput, requests/s", "fairness (Jain)", "the bench itself, us a token"} <= names


def test_what_no_run_has_is_left_out() -> None:
    assert not {"goodput, requests/s", "first token p50, ms"} & set(figures(result([whole()])))
    made = figures(result([whole()]), result([answer()], overhead={"ms late": 0.3}))
    assert made["first token p50, ms"] == ["-", "100"]
    assert made["the bench itself, ms late"] == ["-", "0.3"]


def test_errors_are_named_by_how_often_they_came() -> None:
    records = [*[refusal(error="busy")] * 3, *[refusal(error="gone")] * 5, refusal(WINDOW[1], "too late"), answer()]
    assert errors(result(records)).most_common() == [("gone", 5), ("busy", 3)]
    assert table([result(records)]).splitlines()[-2:] == ["A: 5 failed: gone", "A: 3 failed: busy"]


def test_what_servers_say_is_one_line_that_no_terminal_obeys() -> None:
    assert readable("no\n  room\x1b[2J here") == "no room [2J here"
    assert len(readable("x" * 10_000)) == LONGEST + 4


@pytest.mark.parametrize(("value", "text"), [
    (nan, "-"), (None, "-"), (3, "3"), (12345, "12345"), (12345.6, "12346"), (0.9876, "0.988"), (99.44, "99.4")])
def test_figures_are_as_exact_as_they_are_worth(value: float | None, text: str) -> None:
    assert number(value) == text


def test_columns_are_aligned() -> None:
    lines = table([result([answer()])]).splitlines()
    assert len({len(line) for line in lines}) == 1
