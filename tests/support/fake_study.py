"""Batching study without servers: records of every run of a plan, with latencies from a formula."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from heapq import heapreplace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench.load.record import Ask, Record
from benchmarks.harness.processes import Server
from benchmarks.study.experiments import Experiments
from benchmarks.study.plan import PARTS, Plan, Scope
from benchmarks.study.policies import HANDLERS
from benchmarks.study.records import Raw, Taken
from benchmarks.study.shapes import simulated

MADE = {"date": "2025-01-31", "hardware": "a machine", "command": "weft study batching",
        "versions": {"weft": "0.1.0"}}
SCOPE = Scope(seeds=2, presets=("figure",), windows=(1.0,), levels=(0.5, 1.0, 4.0, 16.0),
              variants=("batch-4", "stall-50"), users=(1, 4, 16), requests=40, span=20.0)
TOKEN = 0.01  # seconds


class House:
    """Fake servers, one per policy. A request that runs alone takes TOKEN seconds per token."""

    def __init__(self) -> None:
        self.servers: list[dict[str, Any]] = []
        self.asked: list[int] = []  # number of requests in each run, without warmup

    @contextmanager
    def serving(self, _: int, *, settings: dict[str, Any], **__: Any) -> Iterator[Server]:
        self.servers.append(settings)
        yield Server(1, 2, len(self.servers) - 1, Path())

    def ask(self, port: int, dialect: str, asks: Sequence[Ask], concurrency: int | None) -> list[Record]:
        settings = self.servers[port]
        if asks[0].prompt == "Request":
            return []
        self.asked.append(len(asks))
        serve = one_by_one if settings.get("batching") in {"none", "nobatch", "static"} else at_once
        return serve(asks, concurrency, streamed=dialect != "batching")

    def experiments(self, folder: Path) -> Experiments:
        return Experiments(folder, MADE, inf, self.serving, self.ask, lambda _: {"throughput": 1.0})


def at_once(asks: Sequence[Ask], concurrency: int | None, *, streamed: bool) -> list[Record]:
    """Return records of a server that batches: requests take a fifth longer for each other one, up to eight.

    A request that is not streamed waits for one of HANDLERS handlers.
    """
    slower = 1 + min((concurrency or 2) - 1, 8) / 5
    free, records = [0.0] * HANDLERS, []
    for ask in asks:
        sent = ask.at or 0.0
        begun = sent if streamed else max(sent, free[0])
        records.append(answered(ask, sent, begun, ask.output_tokens * TOKEN * slower, None if streamed else begun))
        heapreplace(free, records[-1].ended)
    return records


def one_by_one(asks: Sequence[Ask], concurrency: int | None, *, streamed: bool) -> list[Record]:
    """Return records of a server without batching; with `concurrency`, each user sends again after a response."""
    records: list[Record] = []
    free = 0.0
    for number, ask in enumerate(asks):
        sent = ask.at or 0.0
        if concurrency:
            sent = records[number - concurrency].ended if number >= concurrency else 0.0
        heard = max(sent, records[number - HANDLERS].ended if number >= HANDLERS else 0.0)
        records.append(answered(ask, sent, max(sent, free), ask.output_tokens * TOKEN, None if streamed else heard))
        free = records[-1].ended
    return records


def answered(ask: Ask, sent: float, begun: float, seconds: float, heard: float | None) -> Record:
    """Return the record of a response: streamed, or whole with the seconds that the server measured since `heard`."""
    ended = begun + seconds
    if heard is not None:
        return Record(ask, sent, ended, num_tokens=ask.output_tokens, told_seconds=ended - heard, status=200)
    times = [begun + seconds * (number + 1) / ask.output_tokens for number in range(ask.output_tokens)]
    return Record(ask, sent, ended, array("d", times), ask.output_tokens, status=200)


@cache
def study(scope: Scope) -> Sequence[Taken]:
    """Return all runs of a study, read back from their files."""
    with TemporaryDirectory() as folder:
        experiments = House().experiments(Path(folder))
        empty = Plan(simulated(1.0), scope)
        plan = replace(empty, pace=experiments.pace(empty))
        for part in PARTS:
            experiments.part(plan, part)
        return Raw(Path(folder)).all()
