"""Synthetic benchmark runs: records of responses with evenly spaced tokens, and results of such records."""

from array import array
from collections.abc import Sequence
from typing import Any

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.bench.report.result import BenchResult
from benchmarks.bench.report.summary import LatencyGoal, summarize_run

WINDOW_SECONDS = 0.0, 10.0


def make_streamed_record(sent_at: float = 0.0, first_token_seconds: float = 0.1, gap: float = 0.01, num_tokens: int = 5,
                         **record_fields: Any) -> RequestRecord:
    """Return the record of a streamed response that ends with its last token."""
    times = array("d", [sent_at + first_token_seconds + gap * place for place in range(num_tokens)])
    request = PlannedRequest(record_fields.pop("number", 1), "hello", num_tokens,
                             adapter=record_fields.pop("adapter", ""))
    return RequestRecord(request, sent_at, times[-1], times, num_tokens, status=200, **record_fields)


def make_unstreamed_record(sent_at: float = 0.0, ended_at: float = 1.0, num_tokens: int = 5) -> RequestRecord:
    """Return the record of a response that was not streamed."""
    return RequestRecord(PlannedRequest(1, "hello", num_tokens), sent_at, ended_at, num_tokens=num_tokens, status=200)


def make_rejected_record(sent_at: float = 0.0, error: str = "429 overloaded") -> RequestRecord:
    return RequestRecord(PlannedRequest(1, "hello", 5), sent_at, sent_at + 0.001, status=429, error=error)


def make_bench_result(records: Sequence[RequestRecord], name: str = "A", goal: LatencyGoal | None = None,
                      **result_fields: Any) -> BenchResult:
    all_fields: dict[str, Any] = {
        "command": "weft bench", "settings": {"rate": 8.0}, "date": "2025-01-31", "hardware": "a loom, 2 cores",
        "versions": {"weft": "0.1.0"}, "overhead": {"% of a core": 12.3, "us a token": 18.2}, "window": WINDOW_SECONDS,
        **result_fields}
    return BenchResult(name, summary=summarize_run(records, all_fields["window"], goal), records=records, **all_fields)


def make_sample_result(name: str = "A", gap: float = 0.01) -> BenchResult:
    """Return a result of 40 responses of 5 to 44 tokens and one rejected request."""
    records = [make_streamed_record(sent_at=0.2 * number, first_token_seconds=0.05 + number / 1000, gap=gap,
                                    num_tokens=5 + number, number=number) for number in range(40)]
    return make_bench_result([*records, make_rejected_record(1.0)], name)
