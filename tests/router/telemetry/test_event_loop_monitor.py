"""Watch of the event loop: what blocks it is observed, and whether it computed."""

import asyncio
import select
import time
from collections.abc import Callable

from router.telemetry.event_loop_monitor import EventLoopMonitor
from router.telemetry.instruments import Histogram, MetricDefinition, MetricType

BLOCKED_SECONDS = 0.3


def observe_blocked_loop(block: Callable[[], object]) -> tuple[float, float]:
    """Return the delays that were observed while a callback blocked the loop: in all, and computing."""
    family = MetricDefinition(MetricType.HISTOGRAM, "delay", "", bucket_bounds=(1.0,))
    delays, computing = Histogram(family, ()), Histogram(family, ())

    async def main() -> None:
        watch = asyncio.create_task(EventLoopMonitor(delays, computing).run())
        await asyncio.sleep(0.05)
        block()
        await asyncio.sleep(0.05)
        watch.cancel()
        await asyncio.wait([watch])
    asyncio.run(main())
    return delays.sum, computing.sum


def compute() -> None:
    end = time.thread_time() + BLOCKED_SECONDS
    while time.thread_time() < end:
        pass


def test_callback_that_computes_is_observed() -> None:
    all_delays, computing = observe_blocked_loop(compute)
    assert all_delays >= BLOCKED_SECONDS - 0.05
    assert computing >= BLOCKED_SECONDS - 0.05


def test_callback_that_waits_is_no_computing() -> None:
    all_delays, computing = observe_blocked_loop(lambda: select.select([], [], [], BLOCKED_SECONDS))
    assert all_delays >= BLOCKED_SECONDS - 0.05
    assert computing < BLOCKED_SECONDS / 2
