"""Latency of base-model requests while thousands of requests name invalid adapters.

Streams without an adapter decode all the time, on a random model in a real shape served by `weft serve`. The time
between two of their tokens is measured in turns: alone, and beside requests for invalid adapters. `python -P -m
benchmarks.questions.invalid_adapters --help` lists the settings. The last line is JSON.
"""

import asyncio
import json
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import cyclopts
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.harness.checkpoints import LLAMAS, make, write_tensors
from benchmarks.harness.invalid_adapter_files import CONFIG, WEIGHTS, spoiled
from benchmarks.harness.results import tell
from benchmarks.harness.served import served, session, token_times
from benchmarks.questions.lora_step import linears
from router.simulation.report import percentile

WORDS = "weave me a picture of the sea and of the boats that sail on it"
RANK = 8
LENGTH = 3000  # tokens of an answer, after which a stream sends its next request
SETTLED = 2.0  # seconds before the first turn, once all streams have begun
IGNORING_ENDS = ("--compat", "lorax")  # an API with `ignore_eos_token`: a random model may end its answers early
NAMED = re.compile(r"'[^']*'|\S*[\d/_.]\S*")  # parts of an error that differ from file to file
PREFIX = re.compile(r"^Request failed during generation: (the adapter \S+: )?")


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    shape: Literal[LLAMAS] = "qwen2.5-0.5b"  # type: ignore[valid-type]  # a computed Literal
    "Which model's sizes."
    streams: Annotated[int, Parameter(validator=Number(gte=1))] = 8
    "How many streams decode."
    requests: Annotated[int, Parameter(validator=Number(gte=1))] = 2000
    "How many spoiled adapters are asked for in a turn, each once."
    at_once: Annotated[int, Parameter(validator=Number(gte=1))] = 8
    "How many of these requests are under way at once, at most."
    rate: Annotated[float, Parameter(validator=Number(gte=0))] = 20.0
    "How many of them come in a second; 0: as many as are answered."
    threads: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    "With how many threads the model computes; 0: as many as weft chooses, on few cores one for each."
    seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 30.0
    "Of a turn without them; one with them lasts until all are answered."
    repeat: Annotated[int, Parameter(validator=Number(gte=1))] = 3
    "How often the two take turns; the figures are medians."
    folder: str = ""
    "Where the random model is kept for the next time; by default it is made anew and thrown away."
    save: bool = False
    "Keep what is printed under benchmarks/results."


@dataclass(slots=True)
class Turn:
    """Token gaps of the streams, and statuses and errors of the other requests."""

    gaps: list[float] = field(default_factory=list)
    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Point:
    p50_ms: float
    p99_ms: float
    most_ms: float
    tokens_per_second: float
    refused_per_second: float


class Streams:
    """Streams that send one request after the other and add their token gaps to `turn`."""

    def __init__(self, http: aiohttp.ClientSession, turn: Turn) -> None:
        self._http = http
        self.turn = turn

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        """Run `count` streams; the block begins when every stream has received a token."""
        begun = [asyncio.Event() for _ in range(count)]
        tasks = [asyncio.create_task(self._stream(number, begun[number])) for number in range(count)]
        all_begun = asyncio.create_task(all_of(begun))
        try:
            await asyncio.wait([all_begun, *tasks], return_when=asyncio.FIRST_COMPLETED)
            check(tasks)
            yield
            check(tasks)
        finally:
            all_begun.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, number: int, begun: asyncio.Event) -> None:
        body = {"inputs": f"{number} {WORDS}", "parameters": {"max_new_tokens": LENGTH, "ignore_eos_token": True}}
        while True:
            async with self._http.post("/generate_stream", json=body) as answer:
                answer.raise_for_status()
                async for _, gap in token_times(answer):
                    begun.set()
                    if gap:
                        self.turn.gaps.append(gap)


async def all_of(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


def check(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Raise the exception of a stream that ended: a stream ends only by failing."""
    for task in tasks:
        if task.done():
            task.result()


async def ask_for(http: aiohttp.ClientSession, due: Iterator[tuple[float, str]], turn: Turn) -> None:
    for at, name in due:
        await asyncio.sleep(at - time.perf_counter())
        body = {"inputs": WORDS, "parameters": {"max_new_tokens": 1, "adapter_id": name}}
        async with http.post("/generate", json=body) as answer:
            told = await answer.json()
        turn.statuses[answer.status] += 1
        if answer.status != 200:
            turn.reasons[reason(str(told.get("error")), name)] += 1


def reason(error: str, name: str) -> str:
    """Return the error without the parts that differ from file to file."""
    return re.sub(r"\.\.\.( \.\.\.)+", "...", NAMED.sub("...", PREFIX.sub("", error).replace(name, "...")))


async def measure(settings: Settings, names: Sequence[str], address: str) -> list[tuple[Turn, Turn]]:
    async with session(address) as http:
        streams = Streams(http, Turn())
        async with streams.running(settings.streams):
            await asyncio.sleep(SETTLED)
            return [(await alone(streams, settings.seconds), await beside(streams, http, settings, names))
                    for _ in range(settings.repeat)]


async def alone(streams: Streams, seconds: float) -> Turn:
    streams.turn = turn = Turn(seconds=seconds)
    await asyncio.sleep(seconds)
    return turn


async def beside(streams: Streams, http: aiohttp.ClientSession, settings: Settings, names: Sequence[str]) -> Turn:
    streams.turn = turn = Turn()
    began, apart = time.perf_counter(), 1 / settings.rate if settings.rate else 0.0
    due = ((began + number * apart, name) for number, name in enumerate(names))
    async with asyncio.TaskGroup() as group:
        for _ in range(settings.at_once):
            group.create_task(ask_for(http, due, turn))
    turn.seconds = time.perf_counter() - began
    return turn


def point(turn: Turn) -> Point:
    gaps = sorted(1e3 * gap for gap in turn.gaps)
    if not gaps:
        raise ValueError("a turn was over before a second token came; ask for more requests, or longer turns")
    return Point(percentile(gaps, 50), percentile(gaps, 99), gaps[-1], len(gaps) / turn.seconds,
                 (turn.statuses.total() - turn.statuses[200]) / turn.seconds)


def ratios(turns: Sequence[tuple[Point, Point]], name: str) -> list[float]:
    """Return a figure beside the other requests divided by the same figure alone, for each turn."""
    return [getattr(other, name) / getattr(first, name) for first, other in turns]


COLUMNS = (("p50 ms", "{0.p50_ms:.1f}"), ("p99 ms", "{0.p99_ms:.1f}"), ("longest", "{0.most_ms:.1f}"),
           ("tokens/s", "{0.tokens_per_second:.0f}"), ("refused/s", "{0.refused_per_second:.0f}"))


def table(turns: Sequence[tuple[Point, Point]]) -> str:
    head = ["", *(name for name, _ in COLUMNS)]
    lines = [[name, *(form.format(one) for _, form in COLUMNS)] for pair in turns
             for name, one in zip(("alone", "beside"), pair, strict=True)]
    return "\n".join(" ".join(f"{cell:>10}" for cell in line) for line in [head, *lines])


def compared(turns: Sequence[tuple[Point, Point]]) -> str:
    found = {name: ratios(turns, f"{name}_ms") for name in ("p50", "p99")}
    return "\n".join(f"{name} beside / alone: {', '.join(f'{one:.3f}' for one in values)}, median "
                     f"{statistics.median(values):.3f}" for name, values in found.items())


def told(reasons: Counter[str], statuses: Counter[int]) -> str:
    lines = [f"{count:>8} {why}" for why, count in reasons.most_common()]
    return "\n".join([f"answered: {', '.join(f'{count} with {status}' for status, count in sorted(statuses.items()))}",
                      *lines])


def counted(counters: Iterable[Counter[Any]]) -> Counter[Any]:
    return sum(counters, Counter())


def summary(settings: Settings, turns: Sequence[tuple[Turn, Turn]]) -> dict[str, Any]:
    points = [(point(first), point(other)) for first, other in turns]
    statuses = counted(other.statuses for _, other in turns)
    medians = {f"{name}_ratio": statistics.median(ratios(points, f"{name}_ms")) for name in ("p50", "p99")}
    return {**{name: round(value, 4) for name, value in medians.items()},
            "refused": statuses.total() - statuses[200], "taken": statuses[200],
            "reasons": dict(counted(other.reasons for _, other in turns).most_common()), "shape": settings.shape,
            "streams": settings.streams, "requests": settings.requests, "at_once": settings.at_once,
            "rate": settings.rate, "threads": settings.threads, "seconds": settings.seconds, "repeat": settings.repeat,
            "turns": [{"alone": asdict(first), "beside": asdict(other)} for first, other in points]}


def write_adapters(settings: Settings, root: Path) -> list[str]:
    """Write the invalid adapters and return their names.

    Each is derived from a valid small adapter for two linears of the first layer."""
    good = root / "good"
    good.mkdir(parents=True)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, inputs, outputs in linears(settings.shape):
        if ".layers.0." in name and name.endswith(("q_proj", "v_proj")):
            shapes |= {f"{name}.lora_A.weight": (RANK, inputs), f"{name}.lora_B.weight": (outputs, RANK)}
    write_tensors(good / WEIGHTS, shapes)
    (good / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}))
    files = {name: (good / name).read_bytes() for name in (CONFIG, WEIGHTS)}
    names = [f"spoiled-{number}" for number in range(settings.requests)]
    for number, name in enumerate(names):
        (root / name).mkdir()
        for file, content in spoiled(files, number).items():
            (root / name / file).write_bytes(content)
    return names


def bench(settings: Settings = Settings()) -> None:
    """Measure milliseconds between tokens of requests without adapter, alone and beside requests for invalid ones."""
    with tempfile.TemporaryDirectory() as temporary:
        model = make(settings.shape, Path(settings.folder or temporary) / settings.shape)
        root = Path(temporary) / "adapters"
        names = write_adapters(settings, root)
        with served(model, root, (*IGNORING_ENDS, "--threads", str(settings.threads))) as address:
            turns = uvloop.run(measure(settings, names, address))
    points = [(point(first), point(other)) for first, other in turns]
    reasons, statuses = counted(other.reasons for _, other in turns), counted(other.statuses for _, other in turns)
    text = "\n".join([table(points), compared(points), told(reasons, statuses)])
    tell(f"{settings.shape} mutated adapters", text, summary(settings, turns), keep=settings.save)


def main() -> None:
    try:
        cyclopts.run(bench)
    except (ValueError, OSError) as error:
        raise SystemExit(f"benchmarks.questions.invalid_adapters: {error}") from None


if __name__ == "__main__":
    main()
