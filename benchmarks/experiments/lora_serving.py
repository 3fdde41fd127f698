"""Cost of adapters through a server: throughput and time between tokens, with resident and with swapped adapters.

Servers are started as users start them, on a random model in a real shape with random adapters that change every
linear of every layer. There are three: one in which all adapters stay loaded, one in which few fit at once, and one
whose adapters have different ranks. On each, the numbers of adapters are measured in turns. `python -P -m
benchmarks.experiments.lora_serving --help` lists the settings. The last line is JSON.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.load.dialects import DIALECTS, UNSTREAMED_TGI_DIALECT
from benchmarks.bench.load.generator import Target, raise_first_failure, run_load
from benchmarks.bench.load.request_records import PlannedRequest
from benchmarks.experiments.lora_step import COST_GOALS_PERCENT, write_random_adapter
from benchmarks.harness import experiment
from benchmarks.harness.cpu_steal_retry import MAX_STEAL_SHARE, Attempt, CpuStealRetry
from benchmarks.harness.processes import MAX_ANSWER_SECONDS, make_adapter_flags, run_weft_serve
from benchmarks.harness.reporting import format_json_line, save_report
from router.simulation.run_stats import percentile

PROMPT = "weave me a picture of the sea and of the boats that sail on it"
EQUAL_RANKS, MIXED_RANKS = (16,), (8, 16, 32, 64)  # ranks


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoraServingSettings(experiment.RandomModelSettings):
    streams: experiment.PositiveInt = 16
    "Number of concurrent requests."
    length: Annotated[int, Parameter(validator=Number(gte=2))] = 32
    "Output length in tokens."
    adapters: experiment.PositiveInts = (1, 8, 16, 32, 128)
    "Numbers of different adapters, used in turn; one row for each."
    places: experiment.PositiveInt = 8
    "Number of adapters that fit at once on the server where they are swapped."
    requests: experiment.PositiveInt = 2
    "Requests of each client in a turn, one after the other."
    repeat: experiment.PositiveInt = 3
    "Number of turns of each row; the figures are medians."
    stolen: experiment.NonNegativeFloat = MAX_STEAL_SHARE
    "Maximum steal time of a turn, as a share of the processors; a turn with more is repeated."


@dataclass(slots=True)
class TurnTimings:
    """Measurements of one turn: number of tokens, its seconds, and the seconds between two tokens of an answer."""

    num_tokens: int = 0
    seconds: float = 0.0
    token_gaps: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class LoraServingPoint:
    """Throughput, its loss, and times between tokens of one server with one number of adapters."""

    variant: str
    adapters: int
    tokens_per_second: float
    cost_percent: float  # of the throughput without adapters in the same turn
    gap_p50_ms: float
    gap_p95_ms: float
    gap_most_ms: float


@dataclass(frozen=True, slots=True)
class VariantResults:
    """Results of one server."""

    variant: str
    seconds_per_new_adapter: float  # elapsed seconds per adapter used for the first time, with many concurrent requests
    max_steal_share: float  # steal time in the worst turn, as a share of the processors
    points: list[LoraServingPoint]

    def format_report(self) -> str:
        return (f"adapters that {self.variant}, a new one every {self.seconds_per_new_adapter:.2f} s "
                f"(others had at most {self.max_steal_share:.1%} of the processors):\n"
                f"{format_table(self.points)}\n")


@dataclass(frozen=True, slots=True)
class ServerVariant:
    """Configuration of one server: ranks of its adapters and command-line flags."""

    name: str
    ranks: tuple[int, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterLoadGenerator:
    """Load on a server by requests that use its adapters in turn."""

    settings: LoraServingSettings
    base_url: str
    ranks: Sequence[int]
    request_numbers: Iterator[int] = field(default_factory=count)

    async def warm_up(self, num_adapters: int) -> float:
        """Generate a token with every adapter; return the elapsed seconds per adapter, with concurrent requests."""
        started_at = time.perf_counter()
        target = Target(self.base_url, UNSTREAMED_TGI_DIALECT, timeout=MAX_ANSWER_SECONDS)
        raise_first_failure(await run_load(target, [
            PlannedRequest(number, PROMPT, 1, adapter=make_adapter_name(self.ranks, number))
            for number in range(num_adapters)], self.settings.streams))
        return (time.perf_counter() - started_at) / num_adapters

    async def run_turn(self, num_adapters: int) -> TurnTimings:
        """Run as many clients as there are streams; each sends its requests one after the other."""
        requests = [self._make_request(number, num_adapters) for number in islice(
            self.request_numbers, self.settings.streams * self.settings.requests)]
        started_at = time.perf_counter()
        records = await run_load(Target(self.base_url, DIALECTS["tgi"], timeout=MAX_ANSWER_SECONDS), requests,
                                 self.settings.streams)
        seconds = time.perf_counter() - started_at
        raise_first_failure(records)
        return TurnTimings(sum(len(record.times) for record in records), seconds,
                           [gap for record in records for gap in record.inter_token_times])

    async def run_turn_with_retries(self, num_adapters: int) -> Attempt[TurnTimings]:
        retry = CpuStealRetry[TurnTimings](self.settings.stolen)
        while retry.begin_next_attempt():
            retry.end_attempt(await self.run_turn(num_adapters))
        return retry.best_attempt

    def _make_request(self, number: int, num_adapters: int) -> PlannedRequest:
        adapter = make_adapter_name(self.ranks, number % num_adapters) if num_adapters else ""
        return PlannedRequest(number, f"{number} {PROMPT}", self.settings.length, adapter=adapter)


def make_adapter_name(ranks: Sequence[int], number: int) -> str:
    return f"rank-{ranks[number % len(ranks)]}-{number}"


def write_random_adapters(settings: LoraServingSettings, adapter_root: Path, ranks: Sequence[int]) -> None:
    for number in range(max(settings.adapters)):
        folder = adapter_root / make_adapter_name(ranks, number)
        if not (folder / "adapter_config.json").exists():
            write_random_adapter(settings.shape, ranks[number % len(ranks)], folder)


async def measure_variant(settings: LoraServingSettings, variant: ServerVariant, base_url: str) -> VariantResults:
    adapter_counts = (0, *settings.adapters)
    load = AdapterLoadGenerator(settings, base_url, variant.ranks)
    seconds_per_new_adapter = await load.warm_up(max(settings.adapters))
    await load.run_turn(0)
    attempts_by_count = [{number: await load.run_turn_with_retries(number) for number in adapter_counts}
                         for _ in range(settings.repeat)]
    return VariantResults(variant.name, seconds_per_new_adapter,
                          max(turn.steal_share for each in attempts_by_count for turn in each.values()),
                          [make_point(variant.name, number,
                                      [{at: turn.result for at, turn in each.items()} for each in attempts_by_count])
                           for number in adapter_counts])


def make_point(variant: str, num_adapters: int, timings_by_count: Sequence[dict[int, TurnTimings]]) -> LoraServingPoint:
    costs = [100 * (1 - turn[num_adapters].tokens_per_second / turn[0].tokens_per_second) for turn in timings_by_count]
    gaps = sorted(1e3 * gap for turn in timings_by_count for gap in turn[num_adapters].token_gaps)
    return LoraServingPoint(variant, num_adapters,
                            statistics.median(turn[num_adapters].tokens_per_second for turn in timings_by_count),
                            statistics.median(costs), percentile(gaps, 50), percentile(gaps, 95), gaps[-1])


TABLE_COLUMNS = (
    ("adapters", "{0.adapters}"), ("tokens/s", "{0.tokens_per_second:.0f}"), ("cost %", "{0.cost_percent:.1f}"),
    ("gap p50", "{0.gap_p50_ms:.1f}"), ("gap p95", "{0.gap_p95_ms:.1f}"), ("longest", "{0.gap_most_ms:.1f}"))


def format_table(points: Sequence[LoraServingPoint]) -> str:
    return experiment.format_columns(TABLE_COLUMNS, [(one,) for one in points])


def make_summary(settings: LoraServingSettings, results: Sequence[VariantResults]) -> dict[str, Any]:
    points = [point for one in results for point in one.points]
    cost_of_resident = {one.adapters: round(one.cost_percent, 1) for one in points if one.variant == "stay"
                        and one.adapters}
    return {"cost_percent": {number: cost_of_resident[number] for number in COST_GOALS_PERCENT
                             if number in cost_of_resident}, "goals": COST_GOALS_PERCENT,
            "shape": settings.shape, "streams": settings.streams, "length": settings.length, "places": settings.places,
            "repeat": settings.repeat,
            "stolen": {one.variant: round(one.max_steal_share, 4) for one in results},
            "seconds_per_new": {one.variant: round(one.seconds_per_new_adapter, 3) for one in results},
            "points": [asdict(one) for one in points]}


def make_variants(settings: LoraServingSettings) -> tuple[ServerVariant, ...]:
    return (ServerVariant("stay", EQUAL_RANKS),
            ServerVariant("take turns", EQUAL_RANKS, ("--max-active-adapters", str(settings.places))),
            ServerVariant("stay, of different ranks", MIXED_RANKS))


def bench(settings: LoraServingSettings = LoraServingSettings()) -> None:
    """Measure tokens per second and milliseconds between tokens, with and without adapters."""
    results: list[VariantResults] = []
    with settings.provide_model() as (model, root):
        adapter_root = root / f"{settings.shape}-adapters"
        for variant in make_variants(settings):
            write_random_adapters(settings, adapter_root, variant.ranks)
            with run_weft_serve(model, (*make_adapter_flags(adapter_root), *variant.flags)) as base_url:
                results.append(uvloop.run(measure_variant(settings, variant, base_url)))
            print(results[-1].format_report(), end="", flush=True)  # printed at once, in case a later server fails
    json_line = format_json_line(make_summary(settings, results))
    if settings.save:
        save_report(f"{settings.shape} adapters served",
                    "".join(one.format_report() for one in results) + f"{json_line}\n")
    print(json_line)


if __name__ == "__main__":
    experiment.run_experiment(bench)
