"""How well `weft simulate` foresees: the first token's times of real runs, each from what another run has taught.

A shard with a small random model, a router and this process, which is the load, talk over real gRPC and HTTP, several
times in a row, each time with other requests. Each recording but the first is then simulated with the pace of the one
before. `python -P -m benchmarks.foresight --help` tells the settings. The last line is JSON.
"""

import asyncio
import json
import os
import signal
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any, Literal

import aiohttp
import cyclopts
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.checkpoint import SHAPES, make
from benchmarks.processes import HOST, serving
from benchmarks.saved import hardware, tell, today
from router.figures import percentile
from router.simulate import Case

SHARES = (50, 99)
SEEDS = 8  # simulations of each run, whose figures are taken together: each begins with other luck
OUTPUT = (8, 48)
WORDS = ("loom", "weft", "warp", "shuttle", "reed", "heddle", "yarn", "twill", "silk", "wool")


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    shape: Literal[tuple(SHAPES)] = "tiny"  # type: ignore[valid-type]  # as many as there are
    "The sizes of the model."
    runs: Annotated[int, Parameter(validator=Number(gte=2))] = 4
    "How many runs; each but the first is foreseen from the one before."
    requests: Annotated[int, Parameter(validator=Number(gte=1))] = 1000
    "At least so many requests in a run."
    bursts: Annotated[float, Parameter(validator=Number(gt=0))] = 1.5
    "How many bursts a second come, at random moments."
    burst: Annotated[int, Parameter(validator=Number(gte=1))] = 8
    "The most requests in a burst; the least is one."
    words: tuple[int, int] = (5, 30)
    "The least and the most words of a prompt."
    save: bool = False
    "Keep what is printed under benchmarks/results."


class Load:
    def __init__(self, settings: Settings, port: int, session: aiohttp.ClientSession, run: int) -> None:
        self._settings = settings
        self._url = f"http://{HOST}:{port}/generate_stream"
        self._session = session
        self._random = Random(run)

    async def ask(self) -> None:
        words = self._random.choices(WORDS, k=self._random.randint(*self._settings.words))
        body = {"inputs": " ".join([f"{self._random.random()}", *words]),
                "parameters": {"max_new_tokens": self._random.randint(*OUTPUT)}}
        async with self._session.post(self._url, json=body) as answer:
            answer.raise_for_status()
            await answer.read()

    async def play(self) -> None:
        began, at, sent = time.perf_counter(), 0.0, 0
        async with asyncio.TaskGroup() as group:
            while sent < self._settings.requests:
                at += self._random.expovariate(self._settings.bursts)
                await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
                size = self._random.randint(1, self._settings.burst)
                sent += size
                for _ in range(size):
                    group.create_task(self.ask())


async def play(settings: Settings, port: int, run: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await Load(settings, port, session, run).play()


def record(settings: Settings, model: str, run: int, folder: Path) -> Path:
    """The recording of a run, from processes of its own."""
    with serving(2, settings={"max_batch_size": 64}, model=model, record_folder=str(folder)) as server:
        uvloop.run(play(settings, server.port, run))
        os.kill(server.router, signal.SIGUSR1)
    (written,) = folder.glob("weft-*.jsonl")  # a router that ends has finished what it began to write
    return written


def recordings(settings: Settings, folder: Path) -> list[Path]:
    model = str(make(settings.shape, folder / "model"))
    return [record(settings, model, run, folder / f"{run}") for run in range(settings.runs)]


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Seconds until first tokens of one run."""

    recorded: list[float]
    simulated: list[float]

    @classmethod
    def of(cls, run: Path, like: Path) -> "Foreseen":
        case = Case.read(run, like, seed=0)
        assert case.trace.figures is not None
        simulated = [time for seed in range(SEEDS) for time in replace(case, seed=seed).under({}).seconds["ttft"]]
        return cls(case.trace.figures.seconds["ttft"], simulated)

    def error(self, share: int) -> float:
        return percentile(self.simulated, share) / percentile(self.recorded, share) - 1.0

    def line(self) -> str:
        return ", ".join(f"p{share} {1e3 * percentile(self.recorded, share):.1f} ms, simulated "
                         f"{1e3 * percentile(self.simulated, share):.1f} ({self.error(share):+.1%})"
                         for share in SHARES)


def bench(settings: Settings = Settings()) -> None:
    """Times to the first token, real and simulated."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        runs = recordings(settings, Path(folder))
        pairs = [Foreseen.of(run, like) for like, run in pairwise(runs)]
    together = Foreseen(
        [t for pair in pairs for t in pair.recorded], [t for pair in pairs for t in pair.simulated])
    date = today()
    figures: dict[str, Any] = {
        **{f"p{share}_error": round(together.error(share), 4) for share in SHARES},
        **{f"p{share}_error_of_runs": [round(pair.error(share), 4) for pair in pairs] for share in SHARES},
        "requests": len(together.recorded), "shape": settings.shape, "bursts": settings.bursts, "date": date,
        "hardware": hardware()}
    typical = ", ".join(f"p{share} {median(abs(pair.error(share)) for pair in pairs):.1%}" for share in SHARES)
    text = "\n".join([*(f"run {number}: {pair.line()}" for number, pair in enumerate(pairs, 2)),
                      f"together: {together.line()}", f"a run's error, median: {typical}", json.dumps(figures)])
    tell(date, "foresight", text, keep=settings.save)


if __name__ == "__main__":
    cyclopts.run(bench)
