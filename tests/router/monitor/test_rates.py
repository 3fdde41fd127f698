"""Rates over the last seconds, and since the start."""

import time

import pytest

from router.model_info import ModelInfo
from router.monitor.observed_steps import ObservedStep
from router.monitor.rates import RateWindow, describe_percentiles, describe_rates_since_start
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.telemetry.server_metrics import ServerMetrics
from router.text.prompt_encoder import TokenLimits


def make_step(answered_at, rows, finished=()):
    return ObservedStep(1, "mixed", answered_at, 0.01, 0.02, rows=rows, finished=list(finished))


def test_rates_are_those_of_the_last_ten_seconds():
    window = RateWindow(0.0)
    window.add_step(make_step(1.0, [(0, 1, 50, "f")]), 1, {}, [0.5])
    for second in range(11, 21):
        window.add_step(make_step(float(second), [(0, 1, 1, "d"), (1, 2, 30, "p")], [(0, 1, "length")]), 1, {0.25: 1},
                        [])
    assert window.describe(20.0) == {
        "window_seconds": 10.0, "tokens_per_second": 1.0, "prompt_tokens_per_second": 30.0, "requests_per_second": 1.0,
        "first_token_ms": {"p50": None, "p99": None}, "gap_ms": {"p50": 250.0, "p99": 250.0}, "batch_size": 2.0,
        "step_ms": 20.0}


def test_window_reaches_back_to_the_beginning_of_a_slot():
    window = RateWindow(0.0)
    for half_second in range(60):
        window.add_step(make_step(half_second / 2, [(0, 1, 2, "d")]), 2, {0.5: 1}, [])
    described = window.describe(29.8)
    assert described["window_seconds"] == 10.3  # since 19.5
    assert described["tokens_per_second"] == round(2 * 21 / 10.3, 2)
    assert (described["batch_size"], described["prompt_tokens_per_second"]) == (1.0, 0.0)


def test_gaps_are_counted_to_a_hundredth_of_a_millisecond():
    window = RateWindow(0.0)
    for gap in (0.010001, 0.010002, 0.020004):
        window.add_step(make_step(1.0, [(0, 1, 1, "d")]), 1, {gap: 1}, [])
    assert window.describe(2.0)["gap_ms"] == {"p50": 10.0, "p99": 20.0}


def test_steps_without_rows_count_in_no_average():
    window = RateWindow(0.0)
    window.add_step(make_step(1.0, [(0, 1, 50, "f")]), 1, {}, [0.5])
    window.add_step(make_step(1.1, [], [(0, 1, "cancelled")]), 0, {}, [])
    described = window.describe(2.0)
    assert (described["batch_size"], described["requests_per_second"]) == (1.0, 0.0)


def test_window_begins_when_watching_began():
    window = RateWindow(100.0)
    window.add_step(make_step(101.0, [(0, 1, 50, "f")]), 1, {}, [0.5])
    described = window.describe(102.0)
    assert (described["window_seconds"], described["tokens_per_second"]) == (2.0, 0.5)
    assert described["first_token_ms"] == {"p50": 500.0, "p99": 500.0}
    assert RateWindow(100.0).describe(100.0)["tokens_per_second"] is None


@pytest.mark.parametrize(("counts", "p50", "p99"), [
    ({}, None, None), ({1.0: 1}, 1000.0, 1000.0), ({1.0: 50, 2.0: 50}, 1000.0, 2000.0),
    ({2.0: 1, 1.0: 99}, 1000.0, 1000.0), ({2.0: 2, 1.0: 98}, 1000.0, 2000.0)])
def test_percentile_is_the_smallest_value_that_so_many_do_not_exceed(counts, p50, p99):
    assert describe_percentiles(counts) == {"p50": p50, "p99": p99}


def test_rates_since_the_start_come_from_the_metrics():
    model_info = ModelInfo("none", "cpu", "none", 512, 512, 16, 10)
    metrics = ServerMetrics(Scheduler(SchedulerSettings(), model_info), TokenLimits(99, 100), 1)
    empty = describe_rates_since_start(metrics, metrics.started_at + 4)
    assert (empty["tokens_per_second"], empty["step_ms"], empty["gap_ms"]) == (0.0, None, {"p50": None, "p99": None})
    metrics.steps.generated_tokens.add(20)
    for _ in range(3):
        metrics.requests.time_to_first_token.observe(0.03)
    described = describe_rates_since_start(metrics, metrics.started_at + 4)
    assert described["tokens_per_second"] == 5.0
    assert described["first_token_ms"] == {"p50": 40.0, "p99": 40.0}  # the bound of the bucket
    assert described.keys() == RateWindow(time.monotonic()).describe(time.monotonic()).keys()
