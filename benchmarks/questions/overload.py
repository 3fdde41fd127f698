"""Behavior under overload: how fast excess requests are rejected, how long the others wait, what throughput is lost.

A simulated shard, a router and this process, which is the load, communicate over real gRPC and HTTP. The load is
first as much as can be served, then several times as much for a while. `python -P -m benchmarks.questions.overload
--help` lists the settings. The last line is JSON.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any

import aiohttp
import cyclopts
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.harness.processes import HOST, serving
from benchmarks.harness.results import tell

BATCH = 16
OUTPUT = 64  # tokens of every answer
SETTLED = 4.0  # seconds of warm-up, which do not count
ROUTER = {"max_batch_size": BATCH, "max_concurrent_requests": 100_000}


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    times: Annotated[float, Parameter(validator=Number(gt=1))] = 5.0
    "How many times as much as can be served."
    seconds: Annotated[float, Parameter(validator=Number(gt=5))] = 20.0
    "For how long."
    max_queue_ms: Annotated[float, Parameter(validator=Number(gt=0))] = 1000.0
    "The router's --max-queue-ms."
    save: bool = False
    "Keep what is printed under benchmarks/results."


@dataclass(slots=True)
class Seen:
    """Outcomes of all requests."""

    began: float = field(default_factory=time.perf_counter)
    waits: list[float] = field(default_factory=list)  # queue time of the served requests in milliseconds
    ends: list[float] = field(default_factory=list)  # when answers were complete, in seconds since `began`
    refusals: list[float] = field(default_factory=list)  # milliseconds from sending to the answer 429
    retry_after: list[int] = field(default_factory=list)

    def rate(self, until: float) -> float:
        """Return tokens per second of the answers that were complete between SETTLED and `until`."""
        return OUTPUT * sum(SETTLED <= end < until for end in self.ends) / (until - SETTLED)


class Load:
    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._url = f"http://{HOST}:{port}/generate"
        self._session = session
        self._random = Random(1)

    async def ask(self, seen: Seen) -> None:
        prompt = "".join(self._random.choices("abcdefgh ", k=self._random.randint(8, 32)))
        body = {"inputs": f"say {prompt}", "parameters": {"max_new_tokens": OUTPUT}}
        sent = time.perf_counter()
        async with self._session.post(self._url, json=body) as answer:
            await answer.read()
            now = time.perf_counter()
            if answer.status == 429:
                seen.refusals.append(1e3 * (now - sent))
                seen.retry_after.append(int(answer.headers["Retry-After"]))
                return
            answer.raise_for_status()
            seen.waits.append(float(answer.headers["x-queue-time"]))
            seen.ends.append(now - seen.began)

    async def peak(self, seconds: float) -> float:
        """Return tokens per second when requests are always queued and none is rejected."""
        seen = Seen()

        async def again() -> None:
            while time.perf_counter() < seen.began + seconds:
                await self.ask(seen)

        async with asyncio.TaskGroup() as group:
            for _ in range(2 * BATCH):
                group.create_task(again())
        return seen.rate(seconds)

    async def flood(self, rate: float, seconds: float) -> Seen:
        """Send `rate` requests per second at random times, without waiting for answers (open loop)."""
        seen = Seen()
        async with asyncio.TaskGroup() as group:
            at = 0.0
            while at < seconds:
                at += self._random.expovariate(rate)
                await asyncio.sleep(max(0.0, seen.began + at - time.perf_counter()))
                group.create_task(self.ask(seen))
        return seen


async def measure(settings: Settings) -> tuple[float, Seen]:
    with serving(2, settings=ROUTER | {"max_queue_ms": settings.max_queue_ms}) as server:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            load = Load(server.port, session)
            peak = await load.peak(SETTLED + 6.0)
            return peak, await load.flood(settings.times * peak / OUTPUT, settings.seconds)


def at(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def bench(settings: Settings = Settings()) -> None:
    """Measure rejections, queue times and throughput with several times as many requests as can be served."""
    peak, seen = uvloop.run(measure(settings))
    share = seen.rate(settings.seconds) / peak
    figures: dict[str, Any] = {
        "throughput_share": round(share, 4), "refused": len(seen.refusals), "served": len(seen.waits),
        "refusal_p50_ms": round(at(seen.refusals, .5), 2), "refusal_p99_ms": round(at(seen.refusals, .99), 2),
        "wait_p50_ms": at(seen.waits, .5), "wait_p99_ms": at(seen.waits, .99),
        "max_queue_ms": settings.max_queue_ms, "peak_tokens_per_second": round(peak, 1), "times": settings.times,
        "seconds": settings.seconds}
    text = "\n".join([
        f"{settings.times:g} times {peak:.0f} tokens/s for {settings.seconds:g} s: {100 * share:.1f} % of it served",
        f"{len(seen.refusals)} refused, told after {figures['refusal_p50_ms']} ms (p99 {figures['refusal_p99_ms']}), "
        f"to come back after {min(seen.retry_after)} to {max(seen.retry_after)} s",
        f"{len(seen.waits)} served, started after {figures['wait_p50_ms']:.0f} ms (p99 {figures['wait_p99_ms']:.0f})"])
    tell("overload", text, figures, keep=settings.save)


if __name__ == "__main__":
    cyclopts.run(bench)
