"""CPU cost and lateness of the load generator: unless both are small, the figures measure the generator."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time

from benchmarks.bench.load.record import Record
from router.simulation.report import percentile

PULSE = 0.05  # seconds of sleep between two checks of the event loop's lateness


@dataclass(slots=True)
class Overhead:
    seconds: float = 0.0
    cpu: float = 0.0
    late: list[float] = field(default_factory=list)  # seconds by which each check was late

    def told(self, records: Sequence[Record], *, is_open: bool) -> dict[str, float]:
        """Return the overhead by unit.

        Lateness is that of sending in an open loop, where the due times are known, else that of the event loop."""
        tokens = sum(record.num_tokens for record in records)
        late = [record.sent - record.due for record in records] if is_open else self.late
        name = "ms that requests were sent late, p99" if is_open else "ms that it was late, p99"
        return {"% of a core": 100 * self.cpu / self.seconds,
                "us of the processor a token": 1e6 * self.cpu / max(tokens, 1),
                name: 1000 * percentile(late, 99) if late else 0.0}


@asynccontextmanager
async def measured() -> AsyncIterator[Overhead]:
    overhead, began, cpu = Overhead(), perf_counter(), process_time()
    pulse = asyncio.create_task(look(overhead))
    try:
        yield overhead
    finally:
        pulse.cancel()
        overhead.seconds, overhead.cpu = perf_counter() - began, process_time() - cpu


async def look(overhead: Overhead) -> None:
    while True:
        due = perf_counter() + PULSE
        await asyncio.sleep(PULSE)
        overhead.late.append(max(0.0, perf_counter() - due))
