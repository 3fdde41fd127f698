"""CPU cost and lateness of the load generator: unless both are small, the figures measure the generator."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time

from benchmarks.bench.load.request_records import RequestRecord
from router.simulation.run_stats import percentile

CHECK_INTERVAL_SECONDS = 0.05  # seconds of sleep between two checks of the event loop's lateness


@dataclass(slots=True)
class GeneratorOverhead:
    """CPU time of the load generator, and by how many seconds its event loop was late."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    lateness_seconds: list[float] = field(default_factory=list)  # seconds by which each check was late

    def summarize(self, records: Sequence[RequestRecord], *, is_open_loop: bool) -> dict[str, float]:
        """Return the overhead by unit.

        Lateness is that of sending in an open loop, where the due times are known, else that of the event loop."""
        tokens = sum(record.num_tokens for record in records)
        lateness = [record.sent - record.due_at for record in records] if is_open_loop else self.lateness_seconds
        lateness_unit = "ms requests were sent late, p99" if is_open_loop else "ms its event loop was late, p99"
        return {"% of a core": 100 * self.cpu_seconds / self.seconds,
                "µs of CPU per token": 1e6 * self.cpu_seconds / max(tokens, 1),
                lateness_unit: 1000 * percentile(lateness, 99) if lateness else 0.0}


@asynccontextmanager
async def measure_overhead() -> AsyncIterator[GeneratorOverhead]:
    overhead, started_at, cpu_at_start = GeneratorOverhead(), perf_counter(), process_time()
    lateness_task = asyncio.create_task(measure_event_loop_lateness(overhead))
    try:
        yield overhead
    finally:
        lateness_task.cancel()
        overhead.seconds, overhead.cpu_seconds = perf_counter() - started_at, process_time() - cpu_at_start


async def measure_event_loop_lateness(overhead: GeneratorOverhead) -> None:
    while True:
        due_at = perf_counter() + CHECK_INTERVAL_SECONDS
        await asyncio.sleep(CHECK_INTERVAL_SECONDS)
        overhead.lateness_seconds.append(max(0.0, perf_counter() - due_at))
