"""Tests of the summary of a run."""

from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_bench_results import answer, refusal, whole

from benchmarks.bench.load.record import Ask, Record
from benchmarks.bench.report.summary import Goal, Spread, jain, summary, tokens_in

POSITIVE = st.floats(0.001, 1000.0)


def test_percentiles_are_values_that_were_there() -> None:
    spread = Spread.of(float(value) for value in range(100, 0, -1))
    assert (spread.p50, spread.p90, spread.p95, spread.p99) == (50, 90, 95, 99)
    assert (spread.count, spread.mean, spread.least, spread.most) == (100, 50.5, 1, 100)


def test_nothing_has_no_percentiles() -> None:
    assert Spread.of([]).count == 0
    assert isnan(Spread.of([]).p50)


@given(st.lists(POSITIVE, min_size=1, max_size=12))
def test_percentiles_rise_from_the_least_to_the_most(values: list[float]) -> None:
    spread = Spread.of(values)
    ranks = [spread.least, spread.p50, spread.p90, spread.p95, spread.p99, spread.most]
    assert ranks == sorted(ranks)
    assert set(ranks) <= set(values)


def test_latencies_count_of_what_was_sent_in_the_window() -> None:
    records = [answer(sent=sent, first=first) for sent, first in ((0.5, 9.0), (1.0, 0.1), (1.9, 0.2), (2.0, 9.0))]
    made = summary(records, (1.0, 2.0))
    assert (made.requests, made.first_token.count) == (2, 2)
    assert made.first_token.most == pytest.approx(0.2)


def test_what_was_due_in_the_window_counts_though_it_was_sent_behind_it() -> None:
    """A window over sending times would leave out the requests that waited longest."""
    late = Record(Ask(0, "a", 5, at=0.5), 1.5, 3.0, num_tokens=5)
    made = summary([late], (0.0, 1.0))
    assert (made.requests, made.latency.most) == (1, 2.5)


def test_tokens_count_when_they_came_in_the_window() -> None:
    made = summary([answer(sent=0.0, first=0.5, gap=0.5, tokens=4)], (1.0, 2.0))
    assert (made.requests, made.tokens, made.tokens_per_second) == (0, 3, 3.0)


def test_what_was_not_streamed_came_when_it_ended() -> None:
    assert [tokens_in(whole(0.0, ended), 1.0, 2.0) for ended in (0.5, 1.5, 2.5)] == [0, 5, 0]


def test_events_with_several_tokens_hold_equally_many() -> None:
    record = answer(first=0.5, gap=1.0, tokens=2)
    record.num_tokens = 8
    assert tokens_in(record, 0.0, 1.0) == 4


def test_what_failed_has_no_latency_and_is_counted() -> None:
    made = summary([answer(), refusal()], (0.0, 10.0))
    assert (made.requests, made.failed, made.latency.count, made.requests_per_second) == (2, 1, 1, 0.1)


@pytest.mark.parametrize(("goal", "goodput"), [
    (Goal(), 0.2), (Goal(ttft=0.2), 0.1), (Goal(itl=0.05), 0.1), (Goal(e2e=0.01), 0.0),
    (Goal(ttft=0.2, itl=0.05), 0.0)])
def test_goodput_counts_answers_that_met_every_goal(goal: Goal, goodput: float) -> None:
    records = [answer(first=0.1, gap=0.1), answer(first=0.3, gap=0.01), refusal()]
    assert summary(records, (0.0, 10.0), goal).goodput == goodput


def test_without_a_goal_there_is_no_goodput() -> None:
    assert isnan(summary([answer()], (0.0, 10.0)).goodput)


def test_prompts_are_as_long_as_the_server_says() -> None:
    assert summary([answer(prompt_tokens=7), answer()], (0.0, 10.0)).prompt_tokens == 7


def test_a_window_without_length_has_no_rates() -> None:
    made = summary([], (1.0, 1.0))
    assert (made.tokens, isnan(made.tokens_per_second), isnan(made.fairness)) == (0, True, True)


@given(POSITIVE, st.integers(1, 50))
def test_equal_shares_are_fair(share: float, count: int) -> None:
    assert jain([share] * count) == pytest.approx(1.0)


@given(POSITIVE, st.integers(1, 50))
def test_one_who_gets_all_is_as_unfair_as_can_be(share: float, count: int) -> None:
    assert jain([share] + [0.0] * (count - 1)) == pytest.approx(1 / count)


@given(st.lists(POSITIVE, min_size=1, max_size=6), POSITIVE)
def test_fairness_lies_between_and_has_no_unit(shares: list[float], factor: float) -> None:
    assert 1 / len(shares) <= jain(shares) * (1 + 1e-9)
    assert jain(shares) <= 1 + 1e-9
    assert jain([share * factor for share in shares]) == pytest.approx(jain(shares))


@given(st.lists(st.tuples(st.floats(0, 20), POSITIVE, st.integers(1, 9)), max_size=3), st.floats(0, 10))
def test_windows_side_by_side_have_all_there_is(asked: list[tuple[float, float, int]], middle: float) -> None:
    records = [answer(sent=sent, first=first, tokens=tokens) for sent, first, tokens in asked]
    end = 1 + max((record.ended for record in records), default=0.0)
    parts = summary(records, (-1.0, middle)), summary(records, (middle, end))
    assert sum(part.requests for part in parts) == len(records)
    on_the_line = sum(at == middle for record in records for at in record.times)
    assert sum(part.tokens for part in parts) == sum(record.num_tokens for record in records) + on_the_line
