"""Tests of the points that the plots draw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_bench_results import answer, refusal, result, whole

from benchmarks.bench.report.curves import (
    MOST_BINS,
    MOST_POINTS,
    bin_width,
    counted,
    fitted,
    lasted,
    shares,
    thinned,
    token_rates,
    under_way,
)

SORTED = st.lists(st.floats(0, 100), min_size=1, max_size=2 * MOST_POINTS).map(sorted)


def test_answers_that_count_were_sent_in_the_window() -> None:
    records = [answer(sent=0.0), early := answer(sent=1.0), refusal(1.5), answer(sent=2.0)]
    assert counted(result(records, window=(1.0, 2.0))) == [early]


def test_shares_rise_to_all() -> None:
    assert shares([1.0, 2.0, 2.0, 5.0]) == [(1.0, 25.0), (2.0, 50.0), (2.0, 75.0), (5.0, 100.0)]
    assert shares([0.0, 2.0], least=0.1) == [(0.1, 50.0), (2.0, 100.0)]
    assert shares([]) == []


@given(SORTED)
def test_points_of_a_distribution_are_true_and_not_too_many(ordered: list[float]) -> None:
    points = shares(ordered)
    assert len(points) == min(len(ordered), MOST_POINTS)
    assert points[-1] == (ordered[-1], 100.0)
    assert all(100 * sum(other <= value for other in ordered) / len(ordered) >= share for value, share in points)


@given(st.integers(0, 1000), st.integers(2, 50))
def test_what_is_thinned_keeps_its_order_and_both_ends(count: int, most: int) -> None:
    kept = thinned(range(count), most)
    assert len(kept) == min(count, most)
    assert kept == sorted(set(kept))
    assert kept[:1] + kept[-1:] == list(range(count))[:1] + list(range(count))[-1:]


@given(st.floats(-10, 10), st.floats(-10, 10), st.sets(st.integers(-100, 100), min_size=2))
def test_the_line_through_points_of_a_line_is_that_line(slope: float, offset: float, places: set[int]) -> None:
    (left, low), (right, high) = fitted([(x, slope * x + offset) for x in places])
    assert (left, right) == (min(places), max(places))
    assert (low, high) == pytest.approx((slope * left + offset, slope * right + offset), abs=1e-6)


def test_points_above_each_other_have_no_line() -> None:
    assert fitted([(5, 1.0), (5, 2.0)]) == fitted([]) == []


@given(st.floats(0, 3600 * MOST_BINS))
def test_there_are_never_too_many_bins(seconds: float) -> None:
    assert seconds / bin_width(seconds) <= MOST_BINS * (1 + 1e-9)


def test_bins_have_all_tokens_but_those_of_the_last() -> None:
    record = answer(first=0.5, gap=0.5, tokens=6)
    assert token_rates([record], 1.0) == [(0.0, 1.0), (1.0, 2.0), (2.0, 2.0)]
    assert token_rates([whole(ended=0.5, tokens=3), whole(ended=2.5)], 1.0) == [(0.0, 3.0), (1.0, 0.0)]
    assert token_rates([], 1.0) == []


def test_events_with_several_tokens_hold_equally_many() -> None:
    record = answer(first=0.5, gap=1.0, tokens=2)
    record.num_tokens = 8
    assert token_rates([record], 1.0) == [(0.0, 4.0)]


def test_requests_are_under_way_from_when_they_are_sent_to_when_they_end() -> None:
    points = dict(under_way([whole(0.0, 3.0), whole(1.0, 2.0)], MOST_POINTS - 1.0))
    assert [points[at] for at in (0.0, 0.0 + 1, 2.0, 3.0)] == [1, 2, 1, 0]


def test_a_run_lasts_until_its_last_answer() -> None:
    assert lasted(result([whole(ended=4.0), whole(ended=2.0)])) == 4.0
    assert lasted(result([])) == 0.0
