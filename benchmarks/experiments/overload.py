"""Behavior under overload: how fast excess requests are rejected, how long the others wait, what throughput is lost.

A simulated shard, a router and this process, which is the load, communicate over real gRPC and HTTP. The load is
first as much as can be served, then several times as much for a while. `python -P -m benchmarks.experiments.overload
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

from benchmarks.harness.processes import HOST, run_router_and_shard
from benchmarks.harness.results import report_results

MAX_BATCH_SIZE = 16
OUTPUT_TOKENS = 64  # tokens of every answer
WARM_UP_SECONDS = 4.0  # seconds of warm-up, which do not count
ROUTER_SETTINGS = {"max_batch_size": MAX_BATCH_SIZE, "max_concurrent_requests": 100_000}


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadSettings:
    times: Annotated[float, Parameter(validator=Number(gt=1))] = 5.0
    "How many times as much as can be served."
    seconds: Annotated[float, Parameter(validator=Number(gt=5))] = 20.0
    "For how long."
    max_queue_ms: Annotated[float, Parameter(validator=Number(gt=0))] = 1000.0
    "The router's --max-queue-ms."
    save: bool = False
    "Keep what is printed under benchmarks/results."


@dataclass(slots=True)
class OverloadOutcomes:
    """Outcomes of all requests."""

    started_at: float = field(default_factory=time.perf_counter)
    queue_times_ms: list[float] = field(default_factory=list)  # queue time of the served requests in milliseconds
    # when answers were complete, in seconds since `started_at`
    completion_times: list[float] = field(default_factory=list)
    rejection_times_ms: list[float] = field(default_factory=list)  # milliseconds from sending to the answer 429
    retry_after_seconds: list[int] = field(default_factory=list)

    def tokens_per_second(self, until: float) -> float:
        """Return tokens per second of the answers that were complete between WARM_UP_SECONDS and `until`."""
        return OUTPUT_TOKENS * sum(WARM_UP_SECONDS <= end < until
                                   for end in self.completion_times) / (until - WARM_UP_SECONDS)


class OverloadGenerator:
    """Load generator that sends more requests than the server can serve."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._url = f"http://{HOST}:{port}/generate"
        self._session = session
        self._random = Random(1)

    async def send_request(self, outcomes: OverloadOutcomes) -> None:
        prompt = "".join(self._random.choices("abcdefgh ", k=self._random.randint(8, 32)))
        body = {"inputs": f"say {prompt}", "parameters": {"max_new_tokens": OUTPUT_TOKENS}}
        sent_at = time.perf_counter()
        async with self._session.post(self._url, json=body) as answer:
            await answer.read()
            now = time.perf_counter()
            if answer.status == 429:
                outcomes.rejection_times_ms.append(1e3 * (now - sent_at))
                outcomes.retry_after_seconds.append(int(answer.headers["Retry-After"]))
                return
            answer.raise_for_status()
            outcomes.queue_times_ms.append(float(answer.headers["x-queue-time"]))
            outcomes.completion_times.append(now - outcomes.started_at)

    async def measure_peak_throughput(self, seconds: float) -> float:
        """Return tokens per second when requests are always queued and none is rejected."""
        outcomes = OverloadOutcomes()

        async def send_repeatedly() -> None:
            while time.perf_counter() < outcomes.started_at + seconds:
                await self.send_request(outcomes)

        async with asyncio.TaskGroup() as group:
            for _ in range(2 * MAX_BATCH_SIZE):
                group.create_task(send_repeatedly())
        return outcomes.tokens_per_second(seconds)

    async def run_open_loop(self, rate: float, seconds: float) -> OverloadOutcomes:
        """Send `rate` requests per second at random times, without waiting for answers (open loop)."""
        outcomes = OverloadOutcomes()
        async with asyncio.TaskGroup() as group:
            send_time = 0.0
            while send_time < seconds:
                send_time += self._random.expovariate(rate)
                await asyncio.sleep(max(0.0, outcomes.started_at + send_time - time.perf_counter()))
                group.create_task(self.send_request(outcomes))
        return outcomes


async def measure_overload(settings: OverloadSettings) -> tuple[float, OverloadOutcomes]:
    with run_router_and_shard(2, settings=ROUTER_SETTINGS | {"max_queue_ms": settings.max_queue_ms}) as server:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            generator = OverloadGenerator(server.port, session)
            peak_tokens_per_second = await generator.measure_peak_throughput(WARM_UP_SECONDS + 6.0)
            return peak_tokens_per_second, await generator.run_open_loop(settings.times * peak_tokens_per_second
                                                                         / OUTPUT_TOKENS, settings.seconds)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def bench(settings: OverloadSettings = OverloadSettings()) -> None:
    """Measure rejections, queue times and throughput with several times as many requests as can be served."""
    peak_tokens_per_second, outcomes = uvloop.run(measure_overload(settings))
    served_share = outcomes.tokens_per_second(settings.seconds) / peak_tokens_per_second
    figures: dict[str, Any] = {
        "throughput_share": round(served_share, 4), "refused": len(outcomes.rejection_times_ms),
        "served": len(outcomes.queue_times_ms),
        "refusal_p50_ms": round(quantile(outcomes.rejection_times_ms, .5), 2),
        "refusal_p99_ms": round(quantile(outcomes.rejection_times_ms, .99), 2),
        "wait_p50_ms": quantile(outcomes.queue_times_ms, .5), "wait_p99_ms": quantile(outcomes.queue_times_ms, .99),
        "max_queue_ms": settings.max_queue_ms, "peak_tokens_per_second": round(peak_tokens_per_second, 1),
        "times": settings.times,
        "seconds": settings.seconds}
    text = "\n".join([
        f"{settings.times:g} times {peak_tokens_per_second:.0f} tokens/s for {settings.seconds:g} s: "
        f"{100 * served_share:.1f} % of it served",
        f"{len(outcomes.rejection_times_ms)} refused, told after {figures['refusal_p50_ms']} ms (p99 "
        f"{figures['refusal_p99_ms']}), "
        f"to come back after {min(outcomes.retry_after_seconds)} to {max(outcomes.retry_after_seconds)} s",
        f"{len(outcomes.queue_times_ms)} served, started after {figures['wait_p50_ms']:.0f} ms (p99 "
        f"{figures['wait_p99_ms']:.0f})"])
    report_results("overload", text, figures, should_save=settings.save)


if __name__ == "__main__":
    cyclopts.run(bench)
