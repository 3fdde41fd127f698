"""Tests of the comparison of two runs that were measured in turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_bench_results import answer, result, run, whole

from benchmarks.bench.report.summary import Goal
from benchmarks.bench.report.versus import Ratio, compared, ratio_table, times

SLOW, FAST = run("A", gap=0.02).summary, run("B", gap=0.01).summary


def named(ratios: list[Ratio]) -> dict[str, Ratio]:
    return {ratio.name: ratio for ratio in ratios}


def test_a_ratio_is_of_b_to_a_in_every_turn() -> None:
    found = named(compared([(SLOW, FAST), (SLOW, SLOW), (FAST, SLOW)]))["between tokens p50"]
    assert found.turns == pytest.approx((0.5, 1.0, 2.0))
    assert (found.median, found.least, found.most) == pytest.approx((1.0, 0.5, 2.0))


def test_which_direction_is_better_is_said() -> None:
    made = named(compared([(SLOW, FAST)]))
    assert {name for name, ratio in made.items() if ratio.better == "higher"} == {"tokens/s", "requests/s"}
    assert {ratio.better for name, ratio in made.items() if name[-3:] in {"p50", "p90", "p95", "p99"}} == {"lower"}


def test_what_one_of_them_does_not_have_is_not_compared() -> None:
    streamed, not_streamed = result([answer()]).summary, result([whole()]).summary
    assert "first token p50" not in named(compared([(streamed, not_streamed)]))
    assert len(named(compared([(streamed, not_streamed), (streamed, streamed)]))["first token p50"].turns) == 1


def test_nothing_is_no_multiple_of_nothing() -> None:
    none, some = (result([answer()], goal=Goal(e2e=limit)).summary for limit in (0.0, 1.0))
    assert "goodput, requests/s" not in named(compared([(none, some)]))
    assert named(compared([(some, none)]))["goodput, requests/s"].turns == (0.0,)


@given(st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_who_is_compared_the_other_way_round_has_the_inverse(one: float, other: float) -> None:
    first, second = (result([answer(gap=gap)]).summary for gap in (one, other))
    there, back = named(compared([(first, second)])), named(compared([(second, first)]))
    assert [there[name].median * back[name].median for name in there] == pytest.approx([1.0] * len(there))


def test_a_line_tells_median_and_spread() -> None:
    lines = ratio_table([Ratio("tokens/s", "higher", (1.28, 1.31, 1.35), 3)], ("before", "after")).splitlines()
    assert lines[0].split() == ["after", "/", "before", "median", "least", "to", "most", "turns", "better", "is"]
    assert lines[1].split() == ["tokens/s", "1.31", "(1.28", "to", "1.35)", "3", "higher"]


def test_turns_that_one_of_them_has_no_figure_of_are_counted() -> None:
    none, some = (result([answer()], goal=Goal(e2e=limit)).summary for limit in (0.0, 1.0))
    [line] = [line for line in ratio_table(compared([(none, some), (some, some)])).splitlines() if "goodput" in line]
    assert "1 of 2" in line


def test_small_ratios_are_not_rounded_away() -> None:
    assert [times(factor) for factor in (0.00123, 0.25, 16.6)] == ["0.0012", "0.25", "16.60"]
