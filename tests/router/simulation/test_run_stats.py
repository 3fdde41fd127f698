"""Latency and throughput figures."""

from math import isnan

import pytest

from router.request import Request
from router.scheduler.events import RequestAccepted, RequestRejected, TokensGenerated
from router.scheduler.shard_messages import Decode, NewSequence, Prefill, StepPlan
from router.simulation.run_stats import RunStats, align_columns, format_seconds_as_ms, format_table, percentile

REQUEST = Request("a", (7,), 5)


def make_prefill_plan(number):
    newcomer = NewSequence(number, REQUEST, (), (1,))
    return StepPlan(1, 1, (Prefill(1, (newcomer,), (), False),), (number,), (number,), 0.1)


def test_wait_ends_with_the_first_step_and_ttft_with_the_first_token():
    stats = RunStats()
    assert stats.record_submission([RequestAccepted(3)], 1.0) == 3
    stats.record_plan(make_prefill_plan(3), 2.0)
    stats.record_events([TokensGenerated({3: 1})], 2.5)
    stats.record_events([TokensGenerated({3: 1})], 2.7)
    assert stats.latencies["wait"] == [1.0]
    assert stats.latencies["ttft"] == [1.5]
    assert stats.latencies["itl"] == [pytest.approx(0.2)]


def test_request_known_from_the_start_has_no_ttft():
    stats = RunStats()
    stats.add_unfinished_at_start(3)
    stats.record_plan(make_prefill_plan(3), 2.0)
    stats.record_events([TokensGenerated({3: 1})], 2.5)
    stats.record_events([TokensGenerated({3: 1})], 2.7)
    assert [len(stats.latencies[kind]) for kind in ("wait", "ttft", "itl")] == [0, 0, 1]


def test_rejections_and_preemptions_are_counted_but_losses_are_no_preemptions():
    stats = RunStats()
    assert stats.record_submission([RequestRejected("full", 1.0)], 0.0) is None
    stats.record_submission([RequestAccepted(3)], 0.0)
    stats.record_plan(make_prefill_plan(3), 1.0)
    stats.record_plan(make_prefill_plan(3), 2.0)
    stats.reset_preemption_tracking()
    stats.record_plan(make_prefill_plan(3), 3.0)
    stats.record_plan(StepPlan(1, 4, (Decode(1),), (3,), (3,), 0.1), 4.0)
    assert (stats.num_requests, stats.num_rejected, stats.num_preemptions) == (2, 1, 1)


def test_throughput_counts_tokens_over_the_whole_time():
    stats = RunStats(started_at=10.0)
    stats.record_submission([RequestAccepted(3)], 10.0)
    stats.record_events([TokensGenerated({3: 4})], 12.0)
    assert stats.tokens_per_second == 2.0
    assert RunStats().tokens_per_second == 0.0


@pytest.mark.parametrize(("share", "value"), [(50, 50), (90, 90), (99, 99), (100, 100), (0, 1), (99.5, 100)])
def test_percentile_is_one_of_the_values(share, value):
    assert percentile(range(1, 101), share) == value


def test_percentile_of_no_values_is_nan():
    assert isnan(percentile([], 50))


def test_table_has_a_column_for_each_run():
    lines = format_table({"one": RunStats(), "two": RunStats()}).splitlines()
    assert lines[0].split() == ["one", "two"]
    assert lines[1].split() == ["first", "token", "p50,", "ms", "-", "-"]
    assert lines[-1].split() == ["tokens", "per", "second", "0.0", "0.0"]


def test_milliseconds_are_rounded_by_magnitude():
    assert [format_seconds_as_ms(seconds) for seconds in (0.00123, 0.0567, 1.2345)] == ["1.2", "56.7", "1234"]


def test_columns_are_aligned():
    assert align_columns([["a", "b"], ["cc", "ddd"]]) == "a     b\ncc  ddd"
