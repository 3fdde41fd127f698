"""Tests of benchmarks/bench/report/overhead.py."""

import asyncio

import pytest

from benchmarks.bench.load.record import Ask, Record
from benchmarks.bench.report.overhead import Overhead, measured

SENT = [Record(Ask(number, "a", 1, at=float(number)), number + 0.001 * number, num_tokens=50) for number in range(3)]


def test_an_open_loop_knows_how_late_it_was() -> None:
    assert Overhead(10.0, 0.5).told(SENT, is_open=True) == pytest.approx({
        "% of a core": 5.0, "us of the processor a token": 0.5e6 / 150, "ms that requests were sent late, p99": 2.0})


def test_who_is_early_is_not_late() -> None:
    early = [Record(Ask(0, "a", 1, at=1.0), 0.9995)]
    assert Overhead(10.0, 0.5).told(early, is_open=True)["ms that requests were sent late, p99"] == 0


def test_a_closed_loop_looks_at_the_clock() -> None:
    assert Overhead(10.0, 0.5, [0.004]).told([], is_open=False)["ms that it was late, p99"] == 4.0


def test_looking_ends_with_what_is_measured() -> None:
    async def story() -> Overhead:
        async with measured() as overhead:
            await asyncio.sleep(0)
        return overhead
    overhead = asyncio.run(story())
    assert overhead.seconds > 0
    assert overhead.cpu >= 0
