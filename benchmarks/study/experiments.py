"""Runs of the study: a server for each turn, a warm-up, the requests, and records, written as soon as a run ends.

A run that already has records is not measured again.
"""

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bench.load.client import Target
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import drive
from benchmarks.bench.load.record import Ask, Record
from benchmarks.harness.processes import HOST, Server, serving
from benchmarks.harness.steal_time import MOST, Tries
from benchmarks.study.measures import is_enough, pace_of
from benchmarks.study.plan import COMPAT, PARTS, SOLO, Pace, Plan, Run, Turn
from benchmarks.study.records import Raw, Taken
from router.simulation.report import percentile

WARM_UP = [Ask(number, "Request", 8) for number in range(8)]
STREAMED = "lorax"  # a dialect with `ignore_eos_token`: answers have as many tokens as requested
TRIES = 5  # attempts at a run while much CPU time is stolen

Asked = Callable[[int, str, Sequence[Ask], int | None], list[Record]]
Serving = Callable[..., AbstractContextManager[Server]]


class Failed(Exception):
    """Raised if all requests of a run failed."""


def asked(port: int, dialect: str, asks: Sequence[Ask], concurrency: int | None) -> list[Record]:
    target = Target(f"http://{HOST}:{port}", DIALECTS[dialect])
    return uvloop.run(drive(target, asks, concurrency))


def told_stats(port: int) -> dict[str, Any]:
    """Return the server's own counters; a request to /stats also makes it write the study's CSV file."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/stats") as answer:
        told: dict[str, Any] = json.load(answer)
    return told


@dataclass(frozen=True, slots=True)
class Experiments:
    """Runs of the study in a folder. `serving`, `asked` and `stats` can be replaced, for tests."""

    folder: Path
    made: dict[str, Any]
    stolen: float = MOST  # a run is repeated if more than this share of the processors was stolen
    serving: Serving = serving
    asked: Asked = asked
    stats: Callable[[int], dict[str, Any]] = told_stats

    def pace(self, plan: Plan, parts: Sequence[str] = PARTS) -> Pace:
        """Return how fast the server is, as far as these parts need it; measured unless there are records."""
        turns = [turn for turn in plan.turns(SOLO) if COMPAT in parts or not turn.runs[0].is_compat]
        return pace_of(taken for turn in turns for taken in self.take(plan, turn))

    def part(self, plan: Plan, part: str) -> None:
        for turn in plan.turns(part):
            for _ in self.take(plan, turn):
                pass

    def take(self, plan: Plan, turn: Turn) -> Iterator[Taken]:
        """Yield the runs of a turn until further ones would add nothing. A server is started only if one is needed."""
        raw, done = Raw(self.folder), list[Taken]()
        with ExitStack() as stack:
            server: Server | None = None
            for run in turn.runs:
                taken = raw.read(run, plan.told(run), self.made["hardware"])
                if taken is None:
                    server = server or stack.enter_context(self.server(plan, run))
                    taken = raw.write(self.measured(plan, run, server))
                done.append(taken)
                yield taken
                if is_enough(done):
                    return

    @contextmanager
    def server(self, plan: Plan, run: Run) -> Iterator[Server]:
        """Run a server, after a warm-up. This avoids the study's own route, whose counters would include it."""
        folder = self.folder / "csv" / f"{run.shape}-{run.part}-seed{run.seed}" if run.is_compat else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with self.serving(2, settings={"compat": STREAMED, **plan.router(run)}, model=plan.shape.folder,
                          shard=plan.shape.shard, folder=folder) as server:
            self.asked(server.port, STREAMED, WARM_UP, 4)
            yield server

    def measured(self, plan: Plan, run: Run, server: Server) -> Taken:
        dialect = "batching" if run.is_compat else STREAMED
        tries = Tries[list[Record]](self.stolen, 1 if run.is_compat else TRIES)  # /stats would count every attempt
        while tries.again():
            tries.ended(self.asked(server.port, dialect, plan.asks(run), run.concurrency))
        records, stolen = tries.best.heard, tries.best.stolen
        wrong = [record.error for record in records if record.error]
        if len(wrong) == len(records):
            raise Failed(f"{run.part} {run.name}: every request failed, the first with: {wrong[0]}")
        seconds = max(record.ended for record in records)
        late = 1e3 * percentile([record.sent - record.due for record in records], 99)
        print(f"{run.part:8} {run.name:44} {len(records):4} requests {seconds:7.1f} s, {stolen:4.0%} stolen"
              + (f", sent {late:.1f} ms late (p99)" if run.concurrency is None else "")
              + (f", {len(wrong)} failed: {wrong[0]}" if wrong else ""), file=sys.stderr, flush=True)
        stats = self.stats(server.port) if run.is_compat else {}
        return Taken(run, plan.told(run), {**self.made, "stolen": round(stolen, 4)}, records, stats)
