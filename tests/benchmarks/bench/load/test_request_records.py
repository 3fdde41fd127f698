"""Tests of the record of a request."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_bench_results import make_rejected_record, make_streamed_record, make_unstreamed_record

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord


def test_time_to_first_token_starts_at_sending() -> None:
    assert make_streamed_record(sent_at=2.0, first_token_seconds=0.5).time_to_first_token == pytest.approx(0.5)
    assert make_streamed_record(sent_at=2.0, first_token_seconds=0.5, gap=0.25,
                                num_tokens=3).latency == pytest.approx(1.0)


def test_late_sending_counts_as_waiting() -> None:
    late = RequestRecord(PlannedRequest(0, "a", 1, at=1.0), 1.5, 3.0, array("d", [2.0, 3.0]))
    assert (late.due_at, late.time_to_first_token, late.latency) == (1.0, 1.0, 2.0)


def test_early_or_undue_requests_wait_from_sending() -> None:
    assert RequestRecord(PlannedRequest(0, "a", 1, at=1.0), 0.75, 3.0).latency == 2.25
    assert RequestRecord(PlannedRequest(0, "a", 1), 0.75, 3.0).latency == 2.25


def test_unstreamed_record_has_no_first_token_or_gaps() -> None:
    record = make_unstreamed_record(sent_at=1.0, ended_at=3.0)
    assert (record.time_to_first_token, record.inter_token_times, record.time_per_output_token,
            record.latency) == (None, [], None, 2.0)


def test_single_token_has_no_gaps() -> None:
    record = make_streamed_record(num_tokens=1)
    assert (record.inter_token_times, record.time_per_output_token) == ([], None)


def test_rejected_record_has_no_times() -> None:
    assert make_rejected_record().time_to_first_token is None


def test_tokens_may_arrive_together() -> None:
    record = make_streamed_record(gap=0.3, num_tokens=2)
    record.num_tokens = 4
    assert record.time_per_output_token == pytest.approx(0.1)
    assert record.inter_token_times == [pytest.approx(0.3)]


@given(st.integers(2, 9), st.floats(0.001, 10.0))
def test_even_gaps_give_equal_seconds_per_token(tokens: int, gap: float) -> None:
    record = make_streamed_record(gap=gap, num_tokens=tokens)
    assert record.time_per_output_token == pytest.approx(gap)
    assert sum(record.inter_token_times) == pytest.approx(gap * (tokens - 1))
