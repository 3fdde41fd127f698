"""Tests of benchmarks/experiments/bench_measurement_error.py."""

from array import array
from collections.abc import Sequence

import pytest

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.experiments.bench_measurement_error import (
    BenchMeasurementErrorPoint,
    compare_with_step_log,
    format_table,
)
from benchmarks.harness.experiment import median_point

STEP_SECONDS, TOKENS_PER_REQUEST, TOTAL_SECONDS = 0.02, 10, 5.0
STARTED_AT = 100.0  # start of the records, on the clock of the steps


def make_step_times() -> list[float]:
    return [step_time for number in range(400)
            for step_time in (STARTED_AT + STEP_SECONDS * number, STARTED_AT + STEP_SECONDS * (number + 1))]


def make_records(late_seconds: float = 0.0) -> list[RequestRecord]:
    """Return the records of a stream whose first tokens take three steps, each token noted `late_seconds` too late."""
    records, sent = [], 0.0
    while sent < TOTAL_SECONDS:
        first = sent + 3 * STEP_SECONDS
        times = array("d", (first + STEP_SECONDS * number + late_seconds for number in range(TOKENS_PER_REQUEST)))
        records.append(RequestRecord(PlannedRequest(len(records), "a", TOKENS_PER_REQUEST), sent, times[-1], times,
                                     TOKENS_PER_REQUEST))
        sent = first + STEP_SECONDS * (TOKENS_PER_REQUEST - 1)
    return records


def compare_records(records: Sequence[RequestRecord]) -> BenchMeasurementErrorPoint:
    return compare_with_step_log(1, records, make_step_times(), STARTED_AT, TOTAL_SECONDS)


def test_exact_records_have_no_error() -> None:
    point = compare_records(make_records(late_seconds=1e-9))
    assert (point.first_token, point.between_tokens) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))
    assert point.throughput == pytest.approx(0, abs=0.03)  # a window holds no whole number of requests


def test_late_records_have_that_error() -> None:
    point = compare_records(make_records(late_seconds=0.003))
    assert point.first_token == pytest.approx(0.003 / (3 * STEP_SECONDS), rel=1e-3)
    assert (point.first_token_off_ms, point.between_tokens_off_ms) == (pytest.approx(3.0), pytest.approx(0, abs=1e-6))


def test_median_is_taken_per_figure() -> None:
    points = [BenchMeasurementErrorPoint(1, 0.1, 0.2, 0.3, 1, 2, 3, 4, 5),
              BenchMeasurementErrorPoint(1, 0.3, 0.1, 0.2, 3, 1, 2, 5, 4),
              BenchMeasurementErrorPoint(1, 0.2, 0.3, 0.1, 2, 3, 1, 6, 6)]
    assert median_point(points) == BenchMeasurementErrorPoint(1, 0.2, 0.2, 0.2, 2, 2, 2, 5, 5)


def test_point_is_formatted_as_a_row() -> None:
    assert format_table([BenchMeasurementErrorPoint(8, 0.1, 0.2, 0.3, 1, 2, 3, 1.5, -0.25)]).splitlines()[
        1].split() == ["8", "+10.00%", "+1.50", "+20.00%", "-0.250", "+30.00%", "1.00", "2.000", "3.0"]
