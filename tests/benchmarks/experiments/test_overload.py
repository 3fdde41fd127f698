"""Tests of the figures of the benchmark of overload."""

from typing import Any

import pytest

from benchmarks.bench.load.http import ResponseHead
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.experiments.overload import (
    OUTPUT_TOKENS,
    WARM_UP_SECONDS,
    OverloadOutcomes,
    compute_tokens_per_second,
    parse_queue_or_retry_seconds,
)


def make_record(ended: float, **fields: Any) -> RequestRecord:
    return RequestRecord(PlannedRequest(0, "say", OUTPUT_TOKENS), 0.0, ended, **fields)


SERVED = make_record(WARM_UP_SECONDS + 1.0, status=200, told_seconds=0.512)
REJECTED = make_record(0.25, status=429, told_seconds=2.0, error="429: overloaded")


@pytest.mark.parametrize(("status", "headers", "seconds"), [
    (200, {"x-queue-time": "512"}, 0.512), (429, {"retry-after": "2"}, 2.0), (503, {}, None)])
def test_head_tells_queue_time_or_when_to_come_back(status: int, headers: dict[str, str],
                                                    seconds: float | None) -> None:
    assert parse_queue_or_retry_seconds(ResponseHead(status, 0, False, True, headers)) == seconds


def test_outcomes_are_of_served_and_of_rejected_requests() -> None:
    assert OverloadOutcomes.from_records([SERVED, REJECTED]) == OverloadOutcomes([512.0], [250.0], [2])


def test_throughput_is_of_answers_within_the_window() -> None:
    records = [SERVED, REJECTED, make_record(WARM_UP_SECONDS - 1.0), make_record(WARM_UP_SECONDS + 2.0)]
    assert compute_tokens_per_second(records, WARM_UP_SECONDS + 2.0) == OUTPUT_TOKENS / 2


def test_other_failures_end_the_benchmark() -> None:
    with pytest.raises(ValueError, match="a request failed: no answer"):
        compute_tokens_per_second([make_record(1.0, error="no answer")], 10.0)
