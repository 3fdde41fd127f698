from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.study.plan import SoloCalibration, StudyRun
from benchmarks.study.run_metrics import (
    compute_closed_loop_metrics,
    compute_fixed_load_metrics,
    compute_measurement_window,
    compute_offered_tokens_per_second,
    compute_open_loop_metrics,
    compute_served_tokens_per_second,
    compute_solo_latencies,
    list_completed_requests,
    mean_latency_by_tokens,
    should_stop_runs,
)
from benchmarks.study.run_record_store import RunRecords

LATENCY_POINTS = ((1.0, 0.1), (100.0, 10.0))  # a tenth of a second a token
SERVER_SPEED = SoloCalibration(LATENCY_POINTS, LATENCY_POINTS, LATENCY_POINTS)
COMPAT_RUN = StudyRun("compat", "simulated", "figure", "dynamic")
SWEEP_RUN = StudyRun("sweep", "simulated", "poisson", "mixed", level=2.0)
USERS_RUN = StudyRun("users", "simulated", "closed", "mixed", level=4.0)


def make_record(num_tokens: int, sent_at: float, ended_at: float, *token_times: float,
                error: str = "") -> RequestRecord:
    return RequestRecord(PlannedRequest(0, "", num_tokens, at=sent_at), sent_at, ended_at, array("d", token_times),
                         num_tokens, error=error)


def make_run_records(run: StudyRun, *records: RequestRecord) -> RunRecords:
    return RunRecords(run, {}, {}, list(records))


def make_steady_run(run: StudyRun, latency: float, *, end_seconds: float = 40.0) -> RunRecords:
    """Return a run that is offered ten tokens per second and sends each answer at once after `latency` seconds."""
    return make_run_records(run, *(make_record(10, float(at), at + latency, at + latency)
                                   for at in range(int(end_seconds) + 1)))


def test_compat_latency_uses_the_server_clock() -> None:
    """Requests of a burst may arrive in another order than they were sent; client-side latencies became negative."""
    burst = [replace(make_record(10, 0.0, 9.0 - index), told_seconds=1.0) for index in range(9)]
    assert [answer.latency_seconds
            for answer in list_completed_requests(make_run_records(COMPAT_RUN, *burst), SERVER_SPEED)] == [1.0] * 9
    assert compute_solo_latencies(burst) == ((10, 1.0),)


def test_latency_starts_when_a_request_is_due() -> None:
    late = RequestRecord(PlannedRequest(0, "", 10, at=1.0), 3.0, 6.0, array("d", [4.0, 6.0]))
    [answer] = list_completed_requests(make_run_records(SWEEP_RUN, late), SERVER_SPEED)
    assert (answer.latency_seconds, answer.first_token_seconds) == (5.0, 3.0)
    assert compute_measurement_window([late]) == (0.5, 1.0)


def test_failed_request_is_no_answer() -> None:
    assert list_completed_requests(make_run_records(SWEEP_RUN, make_record(10, 0.0, 1.0, error="503")),
                                   SERVER_SPEED) == []


@given(st.lists(st.integers(1, 100), min_size=2, unique=True))
def test_linear_latency_has_perfect_correlation_and_fairness(lengths: list[int]) -> None:
    """Each request runs alone, so none is slowed down and all get the same tokens per second."""
    records = [make_record(length, 100.0 * index, 100.0 * index + length / 10) for index, length in enumerate(lengths)]
    metrics = compute_fixed_load_metrics(list_completed_requests(make_run_records(SWEEP_RUN, *records), SERVER_SPEED))
    assert (metrics["slope"], metrics["correlation"]) == (pytest.approx(0.1), pytest.approx(1))
    assert (metrics["jain"], metrics["slowdown"]) == (pytest.approx(1), pytest.approx(1))
    assert metrics["study_throughput"] == pytest.approx(10)


def test_study_throughput_differs_from_wall_clock_throughput() -> None:
    metrics = compute_fixed_load_metrics(list_completed_requests(
        make_run_records(SWEEP_RUN, *(make_record(10, 0.0, 2.0, 0.5, 2.0) for _ in range(4))), SERVER_SPEED))
    assert (metrics["study_throughput"], metrics["tokens_per_second"]) == (5.0, 20.0)
    assert (metrics["longest_wait"], metrics["latency_per_token"]) == (0.5, 0.2)


def test_lengths_have_equal_weight_in_the_mean() -> None:
    completed = list_completed_requests(make_run_records(SWEEP_RUN, make_record(5, 0.0, 1.0), make_record(5, 0.0, 3.0),
                                                         make_record(9, 0.0, 6.0)), SERVER_SPEED)
    assert mean_latency_by_tokens(completed) == {5: 2.0, 9: 6.0}
    assert compute_fixed_load_metrics(completed)["mean_latency"] == 4.0


def test_solo_seconds_are_the_minimum_per_length() -> None:
    records = [make_record(9, 0.0, 6.0), make_record(5, 6.0, 8.0), make_record(5, 7.0, 10.0),
               make_record(5, 0.0, 1.0, error="503")]
    assert compute_solo_latencies(records) == ((5, 2.0), (9, 6.0))


def test_server_that_keeps_up_serves_the_offered_load() -> None:
    kept_up = make_steady_run(SWEEP_RUN, 2.0)
    assert compute_measurement_window(kept_up.records) == (20.0, 40.0)
    assert compute_served_tokens_per_second(kept_up.records) == pytest.approx(
        compute_offered_tokens_per_second(kept_up.records))
    metrics = compute_open_loop_metrics(kept_up, SERVER_SPEED)
    assert (metrics["latency_p50"], metrics["per_token_p50"], metrics["slowdown"]) == (2.0, 0.2, pytest.approx(2.0))
    assert (metrics["requests_per_second"], metrics["first_token_p95"]) == (pytest.approx(1.0, rel=0.03), 2.0)


def test_policy_is_saturated_after_falling_behind_twice() -> None:
    kept_up, late = make_steady_run(SWEEP_RUN, 2.0), make_steady_run(SWEEP_RUN, 30.0)
    assert not should_stop_runs([kept_up])
    assert not should_stop_runs([late])
    assert not should_stop_runs([late, kept_up])
    assert should_stop_runs([kept_up, late, late])


def test_users_are_too_many_at_more_than_twice_the_latency() -> None:
    alone, some, many = (make_steady_run(USERS_RUN, 1.0), make_steady_run(USERS_RUN, 2.0),
                         make_steady_run(USERS_RUN, 2.1))
    assert not should_stop_runs([alone, some])
    assert should_stop_runs([alone, some, many])


def test_last_requests_with_less_load_do_not_count() -> None:
    metrics = compute_closed_loop_metrics(make_run_records(
        USERS_RUN, make_record(10, 0.0, 4.0), make_record(10, 0.0, 5.0), make_record(10, 5.0, 6.0)), SERVER_SPEED)
    assert metrics["per_token_p50"] == pytest.approx(0.45)
    assert metrics["tokens_per_second"] == 5.0
