"""Cost of adapters through a server: throughput and time between tokens, with resident and with swapped adapters.

Servers are started as users start them, on a random model in a real shape with random adapters that change every
linear of every layer. There are three: one in which all adapters stay loaded, one in which few fit at once, and one
whose adapters have different ranks. On each, the numbers of adapters are measured in turns. `python -P -m
benchmarks.experiments.lora_serving --help` lists the settings. The last line is JSON.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import cyclopts
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.experiments.lora_step import COST_GOALS_PERCENT, write_random_adapter
from benchmarks.harness.random_checkpoints import LLAMA_SHAPES, make_random_checkpoint
from benchmarks.harness.results import format_json_line, save_report
from benchmarks.harness.steal_time import MAX_STEAL_SHARE, Attempt, StealTimeRetry
from benchmarks.harness.weft_server import iter_token_times, make_unlimited_session, run_weft_serve
from router.simulation.run_stats import percentile

PROMPT = "weave me a picture of the sea and of the boats that sail on it"
EQUAL_RANKS, MIXED_RANKS = (16,), (8, 16, 32, 64)  # ranks


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoraServingSettings:
    shape: Literal[LLAMA_SHAPES] = "qwen2.5-0.5b"  # type: ignore[valid-type]  # a computed Literal
    "Which model's sizes."
    streams: Annotated[int, Parameter(validator=Number(gte=1))] = 16
    "How many requests are under way at once."
    length: Annotated[int, Parameter(validator=Number(gte=2))] = 32
    "Tokens of each answer."
    adapters: Annotated[tuple[int, ...], Parameter(consume_multiple=True, validator=Number(gte=1))] = (
        1, 8, 16, 32, 128)
    "How many different adapters requests go by, one after the other; one point for each number."
    places: Annotated[int, Parameter(validator=Number(gte=1))] = 8
    "How many adapters fit at once where they take turns."
    requests: Annotated[int, Parameter(validator=Number(gte=1))] = 2
    "How many each of them is in a turn, one behind the other: turns are whole answers, however long a prompt takes."
    repeat: Annotated[int, Parameter(validator=Number(gte=1))] = 3
    "How often the points take turns; the figures are medians."
    stolen: Annotated[float, Parameter(validator=Number(gte=0))] = MAX_STEAL_SHARE
    "A turn is repeated if the host of a virtual machine gave more than this share of the processors to others."
    folder: str = ""
    "Where model and adapters are kept for the next time; by default they are made anew and thrown away."
    save: bool = False
    "Keep what is printed under benchmarks/results."


@dataclass(slots=True)
class TurnTimings:
    """Measurements of one turn: number of tokens, its seconds, and the seconds between two tokens of an answer."""

    num_tokens: int = 0
    seconds: float = 0.0
    token_gaps: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second."""
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


class AdapterStreams:
    """Streams of requests to a server that use its adapters in turn."""

    def __init__(self, settings: LoraServingSettings, http: aiohttp.ClientSession) -> None:
        self._settings, self._http = settings, http
        self._request_numbers = count()

    async def warm_up(self, ranks: Sequence[int], num_adapters: int) -> float:
        """Generate a token with every adapter; return the elapsed seconds per adapter, with concurrent requests."""
        started_at, adapter_numbers = time.perf_counter(), iter(range(num_adapters))
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.streams):
                group.create_task(self._warm_up_adapters(ranks, adapter_numbers))
        return (time.perf_counter() - started_at) / num_adapters

    async def _warm_up_adapters(self, ranks: Sequence[int], adapter_numbers: Iterator[int]) -> None:
        for number in adapter_numbers:
            body = {"inputs": PROMPT,
                    "parameters": {"max_new_tokens": 1, "adapter_id": make_adapter_name(ranks, number)}}
            async with self._http.post("/generate", json=body) as answer:
                answer.raise_for_status()

    async def run_turn(self, ranks: Sequence[int], num_adapters: int) -> TurnTimings:
        """Run all streams; each sends its requests one after the other."""
        started_at, timings = time.perf_counter(), TurnTimings()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.streams):
                group.create_task(self._run_stream(ranks, num_adapters, timings))
        timings.seconds = time.perf_counter() - started_at
        return timings

    async def run_turn_with_retries(self, ranks: Sequence[int], num_adapters: int) -> Attempt[TurnTimings]:
        retry = StealTimeRetry[TurnTimings](self._settings.stolen)
        while retry.begin_next_attempt():
            retry.end_attempt(await self.run_turn(ranks, num_adapters))
        return retry.best_attempt

    async def _run_stream(self, ranks: Sequence[int], num_adapters: int, timings: TurnTimings) -> None:
        for _ in range(self._settings.requests):
            number = next(self._request_numbers)
            name = make_adapter_name(ranks, number % num_adapters) if num_adapters else ""
            body = {"inputs": f"{number} {PROMPT}", "parameters": {
                "max_new_tokens": self._settings.length, "adapter_id": name}}
            async with self._http.post("/generate_stream", json=body) as answer:
                answer.raise_for_status()
                async for _, gap in iter_token_times(answer):
                    timings.num_tokens += 1
                    timings.token_gaps += [gap] if gap else []


def make_adapter_name(ranks: Sequence[int], number: int) -> str:
    return f"rank-{ranks[number % len(ranks)]}-{number}"


def write_random_adapters(settings: LoraServingSettings, adapter_root: Path, ranks: Sequence[int]) -> None:
    for number in range(max(settings.adapters)):
        folder = adapter_root / make_adapter_name(ranks, number)
        if not (folder / "adapter_config.json").exists():
            write_random_adapter(settings.shape, ranks[number % len(ranks)], folder)


async def measure_variant(settings: LoraServingSettings, variant: ServerVariant, base_url: str) -> VariantResults:
    adapter_counts = (0, *settings.adapters)
    async with make_unlimited_session(base_url) as http:
        load = AdapterStreams(settings, http)
        seconds_per_new_adapter = await load.warm_up(variant.ranks, max(settings.adapters))
        await load.run_turn(variant.ranks, 0)
        attempts_by_count = [{number: await load.run_turn_with_retries(variant.ranks, number)
                              for number in adapter_counts} for _ in range(settings.repeat)]
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
    lines = [[form.format(one) for _, form in TABLE_COLUMNS] for one in points]
    return "\n".join(" ".join(f"{cell:>10}" for cell in line) for line in [[name for name, _ in TABLE_COLUMNS], *lines])


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
    with tempfile.TemporaryDirectory() as temporary:
        model_root = Path(settings.folder or temporary)
        model, adapter_root = make_random_checkpoint(settings.shape, model_root
                                                     / settings.shape), model_root / f"{settings.shape}-adapters"
        for variant in make_variants(settings):
            write_random_adapters(settings, adapter_root, variant.ranks)
            with run_weft_serve(model, adapter_root, variant.flags) as base_url:
                results.append(uvloop.run(measure_variant(settings, variant, base_url)))
            print(results[-1].format_report(), end="", flush=True)  # printed at once, in case a later server fails
    json_line = format_json_line(make_summary(settings, results))
    if settings.save:
        save_report(f"{settings.shape} adapters served",
                    "".join(one.format_report() for one in results) + f"{json_line}\n")
    print(json_line)


def main() -> None:
    try:
        cyclopts.run(bench)
    except (ValueError, OSError) as error:
        raise SystemExit(f"benchmarks.experiments.lora_serving: {error}") from None


if __name__ == "__main__":
    main()
