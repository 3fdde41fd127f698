"""Behavior under overload: how fast excess requests are rejected, how long the others wait, what throughput is lost.

A simulated shard, a router and this process, which is the load, communicate over real gRPC and HTTP. The load is
first as much as can be served, then several times as much for a while. `python -P -m benchmarks.experiments.overload
--help` lists the settings. The last line is JSON.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat, takewhile
from random import Random
from typing import Annotated, Any

import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.load.arrivals import iter_poisson_times
from benchmarks.bench.load.dialects import UNSTREAMED_TGI_DIALECT, RequestOptions
from benchmarks.bench.load.generator import Target, raise_first_failure, run_load
from benchmarks.bench.load.http import ResponseHead
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.harness.experiment import ExperimentSettings, PositiveFloat, run_experiment
from benchmarks.harness.processes import HOST, run_router_and_shard
from benchmarks.harness.reporting import report_results
from router.simulation.run_stats import percentile

MAX_BATCH_SIZE = 16
OUTPUT_TOKENS = 64  # tokens of every answer
WARM_UP_SECONDS = 4.0  # seconds of warm-up, which do not count
ROUTER_SETTINGS = {"max_batch_size": MAX_BATCH_SIZE, "max_concurrent_requests": 100_000}


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadSettings(ExperimentSettings):
    times: Annotated[float, Parameter(validator=Number(gt=1))] = 5.0
    "Load, as a multiple of the throughput."
    seconds: Annotated[float, Parameter(validator=Number(gt=5))] = 20.0
    "Seconds of overload."
    max_queue_ms: PositiveFloat = 1000.0
    "The router's --max-queue-ms."


def parse_queue_or_retry_seconds(head: ResponseHead) -> float | None:
    """Return the queue time of a served request, or after how long a rejected one may be sent again."""
    if head.status == 429:
        return float(head.headers["retry-after"])
    return float(head.headers["x-queue-time"]) / 1e3 if head.status == 200 else None


def iter_requests(random: Random, send_times: Iterable[float]) -> Iterator[PlannedRequest]:
    for number, at in enumerate(send_times):
        prompt = "".join(random.choices("abcdefgh ", k=random.randint(8, 32)))
        yield PlannedRequest(number, f"say {prompt}", OUTPUT_TOKENS, at=at)


def compute_tokens_per_second(records: Sequence[RequestRecord], until: float) -> float:
    """Return tokens per second of the answers that were complete between WARM_UP_SECONDS and `until`.

    Raises ValueError if a request was neither served nor rejected."""
    raise_first_failure(record for record in records if record.status != 429)
    return OUTPUT_TOKENS * sum(not record.error and WARM_UP_SECONDS <= record.ended < until
                               for record in records) / (until - WARM_UP_SECONDS)


async def measure_overload(settings: OverloadSettings) -> tuple[float, list[RequestRecord]]:
    """Return tokens per second when requests are always queued, each client sending at once when it was answered, and
    the records of the overload."""
    with run_router_and_shard(2, settings=ROUTER_SETTINGS | {"max_queue_ms": settings.max_queue_ms}) as server:
        random, seconds = Random(1), WARM_UP_SECONDS + 6.0
        dialect = replace(UNSTREAMED_TGI_DIALECT, parse_server_seconds=parse_queue_or_retry_seconds)
        target = Target(f"http://{HOST}:{server.port}", dialect, options=RequestOptions(sampling={"details": False}))
        peak_records = await run_load(target, iter_requests(random, repeat(0.0)), 2 * MAX_BATCH_SIZE, seconds=seconds)
        peak_tokens_per_second = compute_tokens_per_second(peak_records, seconds)
        send_times = takewhile(lambda at: at < settings.seconds, iter_poisson_times(
            settings.times * peak_tokens_per_second / OUTPUT_TOKENS, random))
        return peak_tokens_per_second, await run_load(target, iter_requests(random, send_times))


@dataclass(frozen=True, slots=True)
class OverloadOutcomes:
    """Outcomes of all requests."""

    queue_times_ms: Sequence[float]  # of the served requests
    rejection_times_ms: Sequence[float]  # from sending to the answer 429
    retry_after_seconds: Sequence[int]

    @classmethod
    def from_records(cls, records: Sequence[RequestRecord]) -> "OverloadOutcomes":
        rejected = [record for record in records if record.status == 429]
        served = [record for record in records if record.status != 429]
        return cls([round(1e3 * (record.told_seconds or 0.0), 3) for record in served],
                   [1e3 * (record.ended - record.sent) for record in rejected],
                   [round(record.told_seconds or 0.0) for record in rejected])


def bench(settings: OverloadSettings = OverloadSettings()) -> None:
    """Measure rejections, queue times and throughput with several times as many requests as can be served."""
    peak_tokens_per_second, records = uvloop.run(measure_overload(settings))
    outcomes = OverloadOutcomes.from_records(records)
    served_share = compute_tokens_per_second(records, settings.seconds) / peak_tokens_per_second
    figures: dict[str, Any] = {
        "throughput_share": round(served_share, 4), "refused": len(outcomes.rejection_times_ms),
        "served": len(outcomes.queue_times_ms),
        "refusal_p50_ms": round(percentile(outcomes.rejection_times_ms, 50), 2),
        "refusal_p99_ms": round(percentile(outcomes.rejection_times_ms, 99), 2),
        "wait_p50_ms": percentile(outcomes.queue_times_ms, 50), "wait_p99_ms": percentile(outcomes.queue_times_ms, 99),
        "max_queue_ms": settings.max_queue_ms, "peak_tokens_per_second": round(peak_tokens_per_second, 1),
        "times": settings.times,
        "seconds": settings.seconds}
    text = "\n".join([
        f"{settings.times:g} times {peak_tokens_per_second:.0f} tokens/s for {settings.seconds:g} s: "
        f"{100 * served_share:.1f} % of it served",
        f"{len(outcomes.rejection_times_ms)} refused after {figures['refusal_p50_ms']} ms (p99 "
        f"{figures['refusal_p99_ms']}), "
        f"with Retry-After {min(outcomes.retry_after_seconds)} to {max(outcomes.retry_after_seconds)} s",
        f"{len(outcomes.queue_times_ms)} served, started after {figures['wait_p50_ms']:.0f} ms (p99 "
        f"{figures['wait_p99_ms']:.0f})"])
    report_results("overload", text, figures, should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
