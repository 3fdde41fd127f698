"""Runs of the study: a server for each policy in turn, a warm-up, the requests, and records, written as soon as a run
ends.

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

from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import Target, run_load
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.harness.cpu_steal_retry import MAX_STEAL_SHARE, CpuStealRetry
from benchmarks.harness.processes import HOST, ServerProcesses, run_router_and_shard
from benchmarks.study.plan import COMPAT_PART, SOLO_PART, STUDY_PARTS, PolicyRuns, SoloCalibration, StudyPlan, StudyRun
from benchmarks.study.run_metrics import compute_solo_calibration, should_stop_runs
from benchmarks.study.run_record_store import RunRecords, RunRecordStore
from router.simulation.run_stats import percentile

WARM_UP_REQUESTS = [PlannedRequest(number, "Request", 8) for number in range(8)]
STREAMING_DIALECT = "lorax"  # a dialect with `ignore_eos_token`: answers have as many tokens as requested
MAX_ATTEMPTS = 5  # attempts at a run while much CPU time is stolen

SendRequests = Callable[[int, str, Sequence[PlannedRequest], int | None], list[RequestRecord]]
RunServer = Callable[..., AbstractContextManager[ServerProcesses]]


class AllRequestsFailed(Exception):
    """Raised if all requests of a run failed."""


def send_requests(port: int, dialect: str, requests: Sequence[PlannedRequest],
                  concurrency: int | None) -> list[RequestRecord]:
    target = Target(f"http://{HOST}:{port}", DIALECTS[dialect])
    return uvloop.run(run_load(target, requests, concurrency))


def fetch_server_stats(port: int) -> dict[str, Any]:
    """Return the server's own counters; a request to /stats also makes it write the study's CSV file."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/stats") as answer:
        stats: dict[str, Any] = json.load(answer)
    return stats


@dataclass(frozen=True, slots=True)
class StudyRunner:
    """Runs of the study in a folder. `run_server`, `send_requests` and `fetch_stats` can be replaced, for tests."""

    folder: Path
    metadata: dict[str, Any]
    max_steal_share: float = MAX_STEAL_SHARE  # a run is repeated if more than this share of the processors was stolen
    run_server: RunServer = run_router_and_shard
    send_requests: SendRequests = send_requests
    fetch_stats: Callable[[int], dict[str, Any]] = fetch_server_stats

    def measure_server_speed(self, plan: StudyPlan, parts: Sequence[str] = STUDY_PARTS) -> SoloCalibration:
        """Return how fast the server is, as far as these parts need it; measured unless there are records."""
        solo_policy_runs = [policy_runs for policy_runs in plan.iter_policy_runs(SOLO_PART)
                            if COMPAT_PART in parts or not policy_runs.runs[0].reproduces_study]
        return compute_solo_calibration(run_records for policy_runs in solo_policy_runs
                                        for run_records in self.iter_measured_runs(plan, policy_runs))

    def measure_part(self, plan: StudyPlan, part: str) -> None:
        for policy_runs in plan.iter_policy_runs(part):
            for _ in self.iter_measured_runs(plan, policy_runs):
                pass

    def iter_measured_runs(self, plan: StudyPlan, policy_runs: PolicyRuns) -> Iterator[RunRecords]:
        """Yield the runs until further ones would add nothing. A server is started only if one is needed."""
        store, finished_runs = RunRecordStore(self.folder), list[RunRecords]()
        with ExitStack() as stack:
            server: ServerProcesses | None = None
            for run in policy_runs.runs:
                run_records = store.read(run, plan.make_record_fingerprint(run), self.metadata["hardware"])
                if run_records is None:
                    server = server or stack.enter_context(self.start_warm_server(plan, run))
                    run_records = store.write(self.measure_run(plan, run, server))
                finished_runs.append(run_records)
                yield run_records
                if should_stop_runs(finished_runs):
                    return

    @contextmanager
    def start_warm_server(self, plan: StudyPlan, run: StudyRun) -> Iterator[ServerProcesses]:
        """Run a server, after a warm-up. This avoids the study's own route, whose counters would include it."""
        csv_folder = self.folder / "csv" / f"{run.shape}-{run.part}-seed{run.seed}" if run.reproduces_study else None
        if csv_folder is not None:
            csv_folder.mkdir(parents=True, exist_ok=True)
        with self.run_server(2, settings={"compat": STREAMING_DIALECT, **plan.make_router_settings(run)},
                             model=plan.shape.model_folder, shard=plan.shape.shard_settings,
                             folder=csv_folder) as server:
            self.send_requests(server.port, STREAMING_DIALECT, WARM_UP_REQUESTS, 4)
            yield server

    def measure_run(self, plan: StudyPlan, run: StudyRun, server: ServerProcesses) -> RunRecords:
        dialect = "batching" if run.reproduces_study else STREAMING_DIALECT
        # /stats would count every attempt
        retry = CpuStealRetry[list[RequestRecord]](self.max_steal_share, 1 if run.reproduces_study else MAX_ATTEMPTS)
        while retry.begin_next_attempt():
            retry.end_attempt(self.send_requests(server.port, dialect, plan.make_requests(run), run.concurrency))
        records, steal_share = retry.best_attempt.result, retry.best_attempt.steal_share
        errors = [record.error for record in records if record.error]
        if len(errors) == len(records):
            raise AllRequestsFailed(f"{run.part} {run.name}: every request failed, the first with: {errors[0]}")
        seconds = max(record.ended for record in records)
        lateness_ms = 1e3 * percentile([record.sent - record.due_at for record in records], 99)
        print(f"{run.part:8} {run.name:44} {len(records):4} requests {seconds:7.1f} s, {steal_share:4.0%} stolen"
              + (f", sent {lateness_ms:.1f} ms late (p99)" if run.concurrency is None else "")
              + (f", {len(errors)} failed: {errors[0]}" if errors else ""), file=sys.stderr, flush=True)
        stats = self.fetch_stats(server.port) if run.reproduces_study else {}
        return RunRecords(run, plan.make_record_fingerprint(run), {**self.metadata, "stolen": round(steal_share, 4)},
                          records, stats)
