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

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.harness.processes import ServerProcesses
from benchmarks.study.compared_policies import NUM_HANDLERS
from benchmarks.study.model_settings import make_simulated_model
from benchmarks.study.plan import STUDY_PARTS, StudyPlan, StudyScope
from benchmarks.study.run_record_store import RunRecords, RunRecordStore
from benchmarks.study.runner import StudyRunner

RUN_METADATA = {"date": "2025-01-31", "hardware": "a machine", "command": "weft study batching",
                "versions": {"weft": "0.1.0"}}
SMALL_SCOPE = StudyScope(seeds=2, presets=("figure",), windows=(1.0,), levels=(0.5, 1.0, 4.0, 16.0),
                         variants=("batch-4", "stall-50"), users=(1, 4, 16), requests=40, span=20.0)
SECONDS_PER_TOKEN = 0.01


class FakeStudyServers:
    """Fake servers, one per policy. A request that runs alone takes SECONDS_PER_TOKEN."""

    def __init__(self) -> None:
        self.settings_of_servers: list[dict[str, Any]] = []
        self.request_counts: list[int] = []  # number of requests in each run, without warmup

    @contextmanager
    def run_server(self, _: int, *, settings: dict[str, Any], **__: Any) -> Iterator[ServerProcesses]:
        self.settings_of_servers.append(settings)
        yield ServerProcesses(1, 2, len(self.settings_of_servers) - 1, Path())

    def send_requests(self, port: int, dialect: str, requests: Sequence[PlannedRequest],
                      concurrency: int | None) -> list[RequestRecord]:
        settings = self.settings_of_servers[port]
        if requests[0].prompt == "Request":
            return []
        self.request_counts.append(len(requests))
        make_records = (make_unbatched_records if settings.get("batching") in {"none", "nobatch", "static"}
                        else make_batched_records)
        return make_records(requests, concurrency, is_streamed=dialect != "batching")

    def make_study_runner(self, folder: Path) -> StudyRunner:
        return StudyRunner(folder, RUN_METADATA, inf, self.run_server, self.send_requests,
                           lambda _: {"throughput": 1.0})


def make_batched_records(requests: Sequence[PlannedRequest], concurrency: int | None, *,
                         is_streamed: bool) -> list[RequestRecord]:
    """Return records of a server that batches: requests take a fifth longer for each other one, up to eight.

    A request that is not streamed waits for one of NUM_HANDLERS handlers.
    """
    slowdown = 1 + min((concurrency or 2) - 1, 8) / 5
    handlers_free_at, records = [0.0] * NUM_HANDLERS, []
    for request in requests:
        sent_at = request.at or 0.0
        started_at = sent_at if is_streamed else max(sent_at, handlers_free_at[0])
        records.append(make_record(request, sent_at, started_at, request.output_tokens * SECONDS_PER_TOKEN * slowdown,
                                   None if is_streamed else started_at))
        heapreplace(handlers_free_at, records[-1].ended)
    return records


def make_unbatched_records(requests: Sequence[PlannedRequest], concurrency: int | None, *,
                           is_streamed: bool) -> list[RequestRecord]:
    """Return records of a server without batching; with `concurrency`, each user sends again after a response."""
    records: list[RequestRecord] = []
    server_free_at = 0.0
    for number, request in enumerate(requests):
        sent_at = request.at or 0.0
        if concurrency:
            sent_at = records[number - concurrency].ended if number >= concurrency else 0.0
        handled_at = max(sent_at, records[number - NUM_HANDLERS].ended if number >= NUM_HANDLERS else 0.0)
        records.append(make_record(request, sent_at, max(sent_at, server_free_at),
                                   request.output_tokens * SECONDS_PER_TOKEN, None if is_streamed else handled_at))
        server_free_at = records[-1].ended
    return records


def make_record(request: PlannedRequest, sent_at: float, started_at: float, seconds: float,
                handled_at: float | None) -> RequestRecord:
    """Return the record of a response: streamed, or whole with the seconds that the server measured since
    `handled_at`."""
    ended_at = started_at + seconds
    if handled_at is not None:
        return RequestRecord(request, sent_at, ended_at, num_tokens=request.output_tokens,
                             told_seconds=ended_at - handled_at, status=200)
    times = [started_at + seconds * (number + 1) / request.output_tokens for number in range(request.output_tokens)]
    return RequestRecord(request, sent_at, ended_at, array("d", times), request.output_tokens, status=200)


@cache
def run_fake_study(scope: StudyScope) -> Sequence[RunRecords]:
    """Return all runs of a study, read back from their files."""
    with TemporaryDirectory() as folder:
        study_runner = FakeStudyServers().make_study_runner(Path(folder))
        plan_without_speed = StudyPlan(make_simulated_model(1.0), scope)
        plan = replace(plan_without_speed, server_speed=study_runner.measure_server_speed(plan_without_speed))
        for part in STUDY_PARTS:
            study_runner.measure_part(plan, part)
        return RunRecordStore(Path(folder)).read_all()
