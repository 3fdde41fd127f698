"""Tests of the summary of a run."""

from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_bench_results import make_rejected_record, make_streamed_record, make_unstreamed_record

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.bench.report.summary import (
    DistributionStats,
    LatencyGoal,
    compute_jain_index,
    count_tokens_within,
    summarize_run,
)

POSITIVE_FLOATS = st.floats(0.001, 1000.0)


def test_percentiles_are_observed_values() -> None:
    spread = DistributionStats.from_values(float(value) for value in range(100, 0, -1))
    assert (spread.p50, spread.p90, spread.p95, spread.p99) == (50, 90, 95, 99)
    assert (spread.count, spread.mean, spread.least, spread.most) == (100, 50.5, 1, 100)


def test_empty_distribution_has_no_percentiles() -> None:
    assert DistributionStats.from_values([]).count == 0
    assert isnan(DistributionStats.from_values([]).p50)


@given(st.lists(POSITIVE_FLOATS, min_size=1, max_size=12))
def test_percentiles_rise_from_minimum_to_maximum(values: list[float]) -> None:
    spread = DistributionStats.from_values(values)
    ranks = [spread.least, spread.p50, spread.p90, spread.p95, spread.p99, spread.most]
    assert ranks == sorted(ranks)
    assert set(ranks) <= set(values)


def test_latencies_are_of_requests_sent_in_the_window() -> None:
    records = [make_streamed_record(sent_at=sent, first_token_seconds=first)
               for sent, first in ((0.5, 9.0), (1.0, 0.1), (1.9, 0.2), (2.0, 9.0))]
    summary = summarize_run(records, (1.0, 2.0))
    assert (summary.requests, summary.first_token.count) == (2, 2)
    assert summary.first_token.most == pytest.approx(0.2)


def test_request_due_in_the_window_counts_though_sent_later() -> None:
    """A window over sending times would leave out the requests that waited longest."""
    late = RequestRecord(PlannedRequest(0, "a", 5, at=0.5), 1.5, 3.0, num_tokens=5)
    summary = summarize_run([late], (0.0, 1.0))
    assert (summary.requests, summary.latency.most) == (1, 2.5)


def test_tokens_count_when_received_in_the_window() -> None:
    summary = summarize_run([make_streamed_record(sent_at=0.0, first_token_seconds=0.5, gap=0.5, num_tokens=4)],
                            (1.0, 2.0))
    assert (summary.requests, summary.tokens, summary.tokens_per_second) == (0, 3, 3.0)


def test_unstreamed_tokens_count_when_the_answer_ends() -> None:
    assert [count_tokens_within(make_unstreamed_record(0.0, ended), 1.0, 2.0) for ended in (0.5, 1.5, 2.5)] == [0, 5, 0]


def test_tokens_are_split_evenly_over_events() -> None:
    record = make_streamed_record(first_token_seconds=0.5, gap=1.0, num_tokens=2)
    record.num_tokens = 8
    assert count_tokens_within(record, 0.0, 1.0) == 4


def test_failed_requests_are_counted_without_latency() -> None:
    summary = summarize_run([make_streamed_record(), make_rejected_record()], (0.0, 10.0))
    assert (summary.requests, summary.failed, summary.latency.count, summary.requests_per_second) == (2, 1, 1, 0.1)


@pytest.mark.parametrize(("goal", "goodput"), [
    (LatencyGoal(), 0.2), (LatencyGoal(ttft=0.2), 0.1), (LatencyGoal(itl=0.05), 0.1), (LatencyGoal(e2e=0.01), 0.0),
    (LatencyGoal(ttft=0.2, itl=0.05), 0.0)])
def test_goodput_counts_answers_that_met_every_goal(goal: LatencyGoal, goodput: float) -> None:
    records = [make_streamed_record(first_token_seconds=0.1, gap=0.1),
               make_streamed_record(first_token_seconds=0.3, gap=0.01), make_rejected_record()]
    assert summarize_run(records, (0.0, 10.0), goal).goodput == goodput


def test_goodput_needs_a_goal() -> None:
    assert isnan(summarize_run([make_streamed_record()], (0.0, 10.0)).goodput)


def test_prompt_tokens_are_as_the_server_says() -> None:
    assert summarize_run([make_streamed_record(prompt_tokens=7), make_streamed_record()],
                         (0.0, 10.0)).prompt_tokens == 7


def test_empty_window_has_no_rates() -> None:
    summary = summarize_run([], (1.0, 1.0))
    assert (summary.tokens, isnan(summary.tokens_per_second), isnan(summary.fairness)) == (0, True, True)


@given(POSITIVE_FLOATS, st.integers(1, 50))
def test_equal_shares_have_fairness_one(share: float, count: int) -> None:
    assert compute_jain_index([share] * count) == pytest.approx(1.0)


@given(POSITIVE_FLOATS, st.integers(1, 50))
def test_single_receiver_has_the_lowest_fairness(share: float, count: int) -> None:
    assert compute_jain_index([share] + [0.0] * (count - 1)) == pytest.approx(1 / count)


@given(st.lists(POSITIVE_FLOATS, min_size=1, max_size=6), POSITIVE_FLOATS)
def test_fairness_is_bounded_and_scale_invariant(shares: list[float], factor: float) -> None:
    assert 1 / len(shares) <= compute_jain_index(shares) * (1 + 1e-9)
    assert compute_jain_index(shares) <= 1 + 1e-9
    assert compute_jain_index([share * factor for share in shares]) == pytest.approx(compute_jain_index(shares))


@given(st.lists(st.tuples(st.floats(0, 20), POSITIVE_FLOATS, st.integers(1, 9)), max_size=3), st.floats(0, 10))
def test_adjacent_windows_cover_everything(timings: list[tuple[float, float, int]], middle: float) -> None:
    records = [make_streamed_record(sent_at=sent, first_token_seconds=first, num_tokens=tokens)
               for sent, first, tokens in timings]
    end = 1 + max((record.ended for record in records), default=0.0)
    parts = summarize_run(records, (-1.0, middle)), summarize_run(records, (middle, end))
    assert sum(part.requests for part in parts) == len(records)
    on_the_line = sum(at == middle for record in records for at in record.times)
    assert sum(part.tokens for part in parts) == sum(record.num_tokens for record in records) + on_the_line
