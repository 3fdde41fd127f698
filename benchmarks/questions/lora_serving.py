"""Cost of adapters through a server: throughput and time between tokens, with resident and with swapped adapters.

Servers are started as users start them, on a random model in a real shape with random adapters that change every
linear of every layer. There are three: one in which all adapters stay loaded, one in which few fit at once, and one
whose adapters have different ranks. On each, the numbers of adapters are measured in turns. `python -P -m
benchmarks.questions.lora_serving --help` lists the settings. The last line is JSON.
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

from benchmarks.harness.checkpoints import LLAMAS, make
from benchmarks.harness.results import as_line, save
from benchmarks.harness.served import served, session, token_times
from benchmarks.harness.steal_time import MOST, Tries, Turn
from benchmarks.questions.lora_step import GOALS, make_adapter
from router.simulation.report import percentile

WORDS = "weave me a picture of the sea and of the boats that sail on it"
SAME, MIXED = (16,), (8, 16, 32, 64)  # ranks


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    shape: Literal[LLAMAS] = "qwen2.5-0.5b"  # type: ignore[valid-type]  # a computed Literal
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
    stolen: Annotated[float, Parameter(validator=Number(gte=0))] = MOST
    "A turn is repeated if the host of a virtual machine gave more than this share of the processors to others."
    folder: str = ""
    "Where model and adapters are kept for the next time; by default they are made anew and thrown away."
    save: bool = False
    "Keep what is printed under benchmarks/results."


@dataclass(slots=True)
class Heard:
    """Measurements of one turn: number of tokens, its seconds, and the seconds between two tokens of an answer."""

    tokens: int = 0
    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Point:
    variant: str
    adapters: int
    tokens_per_second: float
    cost_percent: float  # of the throughput without adapters in the same turn
    gap_p50_ms: float
    gap_p95_ms: float
    gap_most_ms: float


@dataclass(frozen=True, slots=True)
class Found:
    """Results of one server."""

    variant: str
    seconds_per_new: float  # elapsed seconds per adapter used for the first time, with many concurrent requests
    stolen: float  # steal time in the worst turn, as a share of the processors
    points: list[Point]

    def told(self) -> str:
        return (f"adapters that {self.variant}, a new one every {self.seconds_per_new:.2f} s "
                f"(others had at most {self.stolen:.1%} of the processors):\n"
                f"{table(self.points)}\n")


@dataclass(frozen=True, slots=True)
class Variant:
    """Configuration of one server: ranks of its adapters and command-line flags."""

    name: str
    ranks: tuple[int, ...]
    flags: tuple[str, ...] = ()


class Load:
    def __init__(self, settings: Settings, http: aiohttp.ClientSession) -> None:
        self._settings, self._http = settings, http
        self._numbers = count()

    async def warm_up(self, ranks: Sequence[int], adapters: int) -> float:
        """Generate a token with every adapter; return the elapsed seconds per adapter, with concurrent requests."""
        began, numbers = time.perf_counter(), iter(range(adapters))
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.streams):
                group.create_task(self._ask_each(ranks, numbers))
        return (time.perf_counter() - began) / adapters

    async def _ask_each(self, ranks: Sequence[int], numbers: Iterator[int]) -> None:
        for number in numbers:
            body = {"inputs": WORDS, "parameters": {"max_new_tokens": 1, "adapter_id": adapter_name(ranks, number)}}
            async with self._http.post("/generate", json=body) as answer:
                answer.raise_for_status()

    async def turn(self, ranks: Sequence[int], adapters: int) -> Heard:
        """Run all streams; each sends its requests one after the other."""
        began, heard = time.perf_counter(), Heard()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.streams):
                group.create_task(self._stream(ranks, adapters, heard))
        heard.seconds = time.perf_counter() - began
        return heard

    async def quiet_turn(self, ranks: Sequence[int], adapters: int) -> Turn[Heard]:
        tries = Tries[Heard](self._settings.stolen)
        while tries.again():
            tries.ended(await self.turn(ranks, adapters))
        return tries.best

    async def _stream(self, ranks: Sequence[int], adapters: int, heard: Heard) -> None:
        for _ in range(self._settings.requests):
            number = next(self._numbers)
            name = adapter_name(ranks, number % adapters) if adapters else ""
            body = {"inputs": f"{number} {WORDS}", "parameters": {
                "max_new_tokens": self._settings.length, "adapter_id": name}}
            async with self._http.post("/generate_stream", json=body) as answer:
                answer.raise_for_status()
                async for _, gap in token_times(answer):
                    heard.tokens += 1
                    heard.gaps += [gap] if gap else []


def adapter_name(ranks: Sequence[int], number: int) -> str:
    return f"rank-{ranks[number % len(ranks)]}-{number}"


def make_adapters(settings: Settings, root: Path, ranks: Sequence[int]) -> None:
    for number in range(max(settings.adapters)):
        folder = root / adapter_name(ranks, number)
        if not (folder / "adapter_config.json").exists():
            make_adapter(settings.shape, ranks[number % len(ranks)], folder)


async def measure(settings: Settings, variant: Variant, address: str) -> Found:
    numbers = (0, *settings.adapters)
    async with session(address) as http:
        load = Load(settings, http)
        cold = await load.warm_up(variant.ranks, max(settings.adapters))
        await load.turn(variant.ranks, 0)
        turns = [{number: await load.quiet_turn(variant.ranks, number) for number in numbers}
                 for _ in range(settings.repeat)]
    return Found(variant.name, cold, max(turn.stolen for each in turns for turn in each.values()), [
        point(variant.name, number, [{at: turn.heard for at, turn in each.items()} for each in turns])
        for number in numbers])


def point(variant: str, number: int, turns: Sequence[dict[int, Heard]]) -> Point:
    costs = [100 * (1 - turn[number].rate / turn[0].rate) for turn in turns]
    gaps = sorted(1e3 * gap for turn in turns for gap in turn[number].gaps)
    return Point(variant, number, statistics.median(turn[number].rate for turn in turns), statistics.median(costs),
                 percentile(gaps, 50), percentile(gaps, 95), gaps[-1])


COLUMNS = (
    ("adapters", "{0.adapters}"), ("tokens/s", "{0.tokens_per_second:.0f}"), ("cost %", "{0.cost_percent:.1f}"),
    ("gap p50", "{0.gap_p50_ms:.1f}"), ("gap p95", "{0.gap_p95_ms:.1f}"), ("longest", "{0.gap_most_ms:.1f}"))


def table(points: Sequence[Point]) -> str:
    lines = [[form.format(one) for _, form in COLUMNS] for one in points]
    return "\n".join(" ".join(f"{cell:>10}" for cell in line) for line in [[name for name, _ in COLUMNS], *lines])


def summary(settings: Settings, found: Sequence[Found]) -> dict[str, Any]:
    points = [point for one in found for point in one.points]
    stays = {one.adapters: round(one.cost_percent, 1) for one in points if one.variant == "stay" and one.adapters}
    return {"cost_percent": {number: stays[number] for number in GOALS if number in stays}, "goals": GOALS,
            "shape": settings.shape, "streams": settings.streams, "length": settings.length, "places": settings.places,
            "repeat": settings.repeat,
            "stolen": {one.variant: round(one.stolen, 4) for one in found},
            "seconds_per_new": {one.variant: round(one.seconds_per_new, 3) for one in found},
            "points": [asdict(one) for one in points]}


def variants(settings: Settings) -> tuple[Variant, ...]:
    return (Variant("stay", SAME), Variant("take turns", SAME, ("--max-active-adapters", str(settings.places))),
            Variant("stay, of different ranks", MIXED))


def bench(settings: Settings = Settings()) -> None:
    """Measure tokens per second and milliseconds between tokens, with and without adapters."""
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(settings.folder or temporary)
        model, root = make(settings.shape, place / settings.shape), place / f"{settings.shape}-adapters"
        for variant in variants(settings):
            make_adapters(settings, root, variant.ranks)
            with served(model, root, variant.flags) as address:
                found.append(uvloop.run(measure(settings, variant, address)))
            print(found[-1].told(), end="", flush=True)  # printed at once, in case a later server fails
    last = as_line(summary(settings, found))
    if settings.save:
        save(f"{settings.shape} adapters served", "".join(one.told() for one in found) + f"{last}\n")
    print(last)


def main() -> None:
    try:
        cyclopts.run(bench)
    except (ValueError, OSError) as error:
        raise SystemExit(f"benchmarks.questions.lora_serving: {error}") from None


if __name__ == "__main__":
    main()
