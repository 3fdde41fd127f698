"""Tests of benchmarks/bench/report/load_generator_overhead.py."""

import asyncio

import pytest

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.bench.report.load_generator_overhead import GeneratorOverhead, measure_overhead

SENT_RECORDS = [RequestRecord(PlannedRequest(number, "a", 1, at=float(number)), number + 0.001 * number, num_tokens=50)
                for number in range(3)]


def test_open_loop_reports_how_late_requests_were_sent() -> None:
    assert GeneratorOverhead(10.0, 0.5).summarize(SENT_RECORDS, is_open_loop=True) == pytest.approx({
        "% of a core": 5.0, "µs of CPU per token": 0.5e6 / 150, "ms requests were sent late, p99": 2.0})


def test_early_request_is_not_late() -> None:
    early = [RequestRecord(PlannedRequest(0, "a", 1, at=1.0), 0.9995)]
    assert GeneratorOverhead(10.0, 0.5).summarize(early, is_open_loop=True)["ms requests were sent late, p99"] == 0


def test_closed_loop_reports_timer_lateness() -> None:
    overhead = GeneratorOverhead(10.0, 0.5, [0.004]).summarize([], is_open_loop=False)
    assert overhead["ms its event loop was late, p99"] == 4.0


def test_overhead_measurement_ends_with_its_block() -> None:
    async def scenario() -> GeneratorOverhead:
        async with measure_overhead() as overhead:
            await asyncio.sleep(0)
        return overhead
    overhead = asyncio.run(scenario())
    assert overhead.seconds > 0
    assert overhead.cpu_seconds >= 0
