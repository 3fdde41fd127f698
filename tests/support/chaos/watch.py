"""Watches a server during a run: deaths of routers, and what each process holds over time."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from support.chaos.server import ChaosServer, ProcessUse
from support.servers.weft_process import find_held_resources

POLL_SECONDS = 0.05
WATCHED_ROLES = ("launcher", "router", "shard", "adapter store")
IDLE_TIMEOUT_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    use: ProcessUse


@dataclass(slots=True)
class ServerWatch:
    server: ChaosServer
    sample_interval: float
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    router_deaths: list[tuple[float, float]] = field(default_factory=list)  # last seen alive, first seen gone

    async def run(self, is_over: Callable[[], bool]) -> None:
        router, seen_at, next_sample = self._find_router(), time.monotonic(), 0.0
        while not is_over():
            now = time.monotonic()
            if (found := self._find_router()) != router:
                if router is not None:
                    self.router_deaths.append((seen_at, now))
                router = found
            seen_at = now
            if now >= next_sample:
                self.take_samples()
                next_sample = now + self.sample_interval
            await asyncio.sleep(POLL_SECONDS)

    def _find_router(self) -> int | None:
        return next(iter(self.server.find_pids("router")), None)

    def take_samples(self) -> None:
        for role in WATCHED_ROLES:
            if (use := self.server.measure(role)) is not None:
                self.samples[role].append(Sample(time.monotonic(), use))


async def wait_until_idle(session: aiohttp.ClientSession, url: str) -> list[str]:
    """Wait until the router is ready and holds nothing; return what it still holds when the time is over."""
    end, held = time.monotonic() + IDLE_TIMEOUT_SECONDS, ["nothing was answered"]
    while held and time.monotonic() < end:
        await asyncio.sleep(0.2)
        try:
            async with asyncio.timeout(5.0), session.get(f"{url}/metrics") as response:
                page = await response.text()
                held = find_held_resources(page) + ["not ready"] * ("tgi_ready 1" not in page.splitlines())
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            continue
    return held


def compute_slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through (seconds, value), per hour; 0 with fewer than two points."""
    if len(points) < 2:
        return 0.0
    mean_at, mean_value = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    return 3600.0 * sum((at - mean_at) * (value - mean_value) for at, value in points) / spread if spread else 0.0
