"""Tests of the points that the plots draw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_bench_results import (
    make_bench_result,
    make_rejected_record,
    make_streamed_record,
    make_unstreamed_record,
)

from benchmarks.bench.report.plot_data import (
    MAX_BINS,
    MAX_LINE_POINTS,
    choose_bin_width,
    compute_run_duration,
    compute_token_rates,
    count_requests_in_flight,
    cumulative_distribution,
    downsample,
    fit_line,
    select_successful_in_window,
)

SORTED_VALUES = st.lists(st.floats(0, 100), min_size=1, max_size=2 * MAX_LINE_POINTS).map(sorted)


def test_only_requests_sent_in_the_window_count() -> None:
    records = [make_streamed_record(sent_at=0.0), early := make_streamed_record(sent_at=1.0), make_rejected_record(1.5),
               make_streamed_record(sent_at=2.0)]
    assert select_successful_in_window(make_bench_result(records, window=(1.0, 2.0))) == [early]


def test_cumulative_shares_rise_to_100_percent() -> None:
    assert cumulative_distribution([1.0, 2.0, 2.0, 5.0]) == [(1.0, 25.0), (2.0, 50.0), (2.0, 75.0), (5.0, 100.0)]
    assert cumulative_distribution([0.0, 2.0], minimum=0.1) == [(0.1, 50.0), (2.0, 100.0)]
    assert cumulative_distribution([]) == []


@given(SORTED_VALUES)
def test_distribution_points_are_exact_and_limited(ordered: list[float]) -> None:
    points = cumulative_distribution(ordered)
    assert len(points) == min(len(ordered), MAX_LINE_POINTS)
    assert points[-1] == (ordered[-1], 100.0)
    assert all(100 * sum(other <= value for other in ordered) / len(ordered) >= share for value, share in points)


@given(st.integers(0, 1000), st.integers(2, 50))
def test_thinned_points_keep_order_and_both_ends(count: int, max_points: int) -> None:
    points = downsample(range(count), max_points)
    assert len(points) == min(count, max_points)
    assert points == sorted(set(points))
    assert points[:1] + points[-1:] == list(range(count))[:1] + list(range(count))[-1:]


@given(st.floats(-10, 10), st.floats(-10, 10), st.sets(st.integers(-100, 100), min_size=2))
def test_fit_of_points_on_a_line_is_that_line(slope: float, offset: float, xs: set[int]) -> None:
    (left, low), (right, high) = fit_line([(x, slope * x + offset) for x in xs])
    assert (left, right) == (min(xs), max(xs))
    assert (low, high) == pytest.approx((slope * left + offset, slope * right + offset), abs=1e-6)


def test_points_at_one_x_have_no_fit() -> None:
    assert fit_line([(5, 1.0), (5, 2.0)]) == fit_line([]) == []


@given(st.floats(0, 3600 * MAX_BINS))
def test_number_of_bins_is_limited(seconds: float) -> None:
    assert seconds / choose_bin_width(seconds) <= MAX_BINS * (1 + 1e-9)


def test_bins_contain_all_tokens_but_those_of_the_last() -> None:
    record = make_streamed_record(first_token_seconds=0.5, gap=0.5, num_tokens=6)
    assert compute_token_rates([record], 1.0) == [(0.0, 1.0), (1.0, 2.0), (2.0, 2.0)]
    assert compute_token_rates([make_unstreamed_record(ended_at=0.5, num_tokens=3),
                                make_unstreamed_record(ended_at=2.5)], 1.0) == [(0.0, 3.0), (1.0, 0.0)]
    assert compute_token_rates([], 1.0) == []


def test_tokens_are_split_evenly_over_events() -> None:
    record = make_streamed_record(first_token_seconds=0.5, gap=1.0, num_tokens=2)
    record.num_tokens = 8
    assert compute_token_rates([record], 1.0) == [(0.0, 4.0)]


def test_requests_are_in_flight_from_sending_to_end() -> None:
    points = dict(count_requests_in_flight([make_unstreamed_record(0.0, 3.0), make_unstreamed_record(1.0, 2.0)],
                                           MAX_LINE_POINTS - 1.0))
    assert [points[at] for at in (0.0, 0.0 + 1, 2.0, 3.0)] == [1, 2, 1, 0]


def test_run_lasts_until_its_last_answer() -> None:
    assert compute_run_duration(make_bench_result([make_unstreamed_record(ended_at=4.0),
                                                   make_unstreamed_record(ended_at=2.0)])) == 4.0
    assert compute_run_duration(make_bench_result([])) == 0.0
