"""Accuracy of `weft simulate`: recorded time to first token against simulations with step times from another run.

A shard with a small random model, a router and this process, which is the load, communicate over real gRPC and HTTP.
Each run is played in parts with different requests; the runs take turns part by part, so that a machine that slows
down affects all of them. Each part's recording is then simulated with the step times of another run's part of the
same turn; a run's figures are over all of its parts. `python -P -m benchmarks.questions.simulator_accuracy --help`
lists the settings. The last line is JSON.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any, Literal

import aiohttp
import cyclopts
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.harness.checkpoints import SHAPES, make
from benchmarks.harness.processes import HOST, serving
from benchmarks.harness.results import tell
from router.simulation.report import percentile
from router.simulation.simulate import Case

SHARES = (50, 99)
SEEDS = 8  # simulations of each part with different random seeds; their figures are pooled
OUTPUT = (8, 48)
WORDS = ("loom", "weft", "warp", "shuttle", "reed", "heddle", "yarn", "twill", "silk", "wool")


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    shape: Literal[tuple(SHAPES)] = "tiny"  # type: ignore[valid-type]  # a computed Literal
    "The sizes of the model."
    runs: Annotated[int, Parameter(validator=Number(gte=2))] = 2
    "How many runs; each is foreseen from the next one, the last from the first."
    turns: Annotated[int, Parameter(validator=Number(gte=1))] = 8
    "In how many parts each run is played."
    requests: Annotated[int, Parameter(validator=Number(gte=1))] = 2000
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
    def __init__(self, settings: Settings, port: int, session: aiohttp.ClientSession, seed: int) -> None:
        self._settings = settings
        self._url = f"http://{HOST}:{port}/generate_stream"
        self._session = session
        self._random = Random(seed)

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
            while sent < self._settings.requests / self._settings.turns:
                at += self._random.expovariate(self._settings.bursts)
                await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
                size = self._random.randint(1, self._settings.burst)
                sent += size
                for _ in range(size):
                    group.create_task(self.ask())


async def play(settings: Settings, port: int, seed: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await Load(settings, port, session, seed).play()


def record(settings: Settings, model: str, seed: int, folder: Path) -> Path:
    """Play one part on newly started processes, and return the path of its recording."""
    with serving(2, settings={"max_batch_size": 64}, model=model, record_folder=str(folder)) as server:
        uvloop.run(play(settings, server.port, seed))
        os.kill(server.router, signal.SIGUSR1)
    (written,) = folder.glob("weft-*.jsonl")  # a router exits only after writing its recording
    return written


def recordings(settings: Settings, folder: Path) -> list[list[Path]]:
    """Record the parts of each run. Every other turn is in reverse order, so that no run is always the first."""
    model = str(make(settings.shape, folder / "model"))
    runs: list[list[Path]] = [[] for _ in range(settings.runs)]
    for turn in range(settings.turns):
        for run in range(settings.runs)[::-1 if turn % 2 else 1]:
            seed = turn * settings.runs + run
            runs[run].append(record(settings, model, seed, folder / f"{seed}"))
    return runs


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Recorded and simulated seconds to first tokens, of a part or of a whole run."""

    recorded: list[float]
    simulated: list[float]

    @classmethod
    def of(cls, part: Path, like: Path) -> "Foreseen":
        case = Case.read(part, like, seed=0)
        assert case.trace.figures is not None
        simulated = [time for seed in range(SEEDS) for time in replace(case, seed=seed).under({}).seconds["ttft"]]
        return cls(case.trace.figures.seconds["ttft"], simulated)

    @classmethod
    def together(cls, parts: Sequence["Foreseen"]) -> "Foreseen":
        return cls([time for part in parts for time in part.recorded],
                   [time for part in parts for time in part.simulated])

    def error(self, share: int) -> float:
        return percentile(self.simulated, share) / percentile(self.recorded, share) - 1.0

    def line(self) -> str:
        return ", ".join(f"p{share} {1e3 * percentile(self.recorded, share):.1f} ms, simulated "
                         f"{1e3 * percentile(self.simulated, share):.1f} ({self.error(share):+.1%})"
                         for share in SHARES)


def bench(settings: Settings = Settings()) -> None:
    """Compare real and simulated times to first token."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        recorded = recordings(settings, Path(folder))
        parts = [[Foreseen.of(part, like) for part, like in zip(run, teacher, strict=True)]
                 for run, teacher in zip(recorded, [*recorded[1:], recorded[0]], strict=True)]
    runs = [Foreseen.together(run) for run in parts]
    figures: dict[str, Any] = {
        **{f"p{share}_error_of_runs": [round(run.error(share), 4) for run in runs] for share in SHARES},
        **{f"p{share}_error_of_parts": [[round(part.error(share), 4) for part in run] for run in parts]
           for share in SHARES},
        "requests": sum(len(run.recorded) for run in runs), "shape": settings.shape, "bursts": settings.bursts}
    typical = ", ".join(
        f"p{share} {median(abs(part.error(share)) for run in parts for part in run):.1%}" for share in SHARES)
    text = "\n".join([*(f"run {number}: {run.line()}" for number, run in enumerate(runs, 1)),
                      f"the error of a part, median: {typical}"])
    tell("foresight", text, figures, keep=settings.save)


if __name__ == "__main__":
    cyclopts.run(bench)
