"""One run: references, load with faults, quiet, checks."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
from support.chaos.answers import Answer
from support.chaos.fault_plan import plan_faults
from support.chaos.faults import FaultInjector
from support.chaos.load import ChaosLoad, judge_cuts, make_key, make_session
from support.chaos.report import (
    RunReport,
    collect_request_findings,
    count_requests,
    judge_descriptors,
    judge_memory,
    list_samples,
    set_recovery_times,
    summarize_faults,
    summarize_memory,
)
from support.chaos.request_mix import ChaosRequest, draw_requests
from support.chaos.server import ChaosServer, run_chaos_server
from support.chaos.watch import ServerWatch, wait_until_idle

NUM_CONCURRENT_REFERENCES = 4
EXPECTED_TRACEBACKS = ("asyncio.exceptions.CancelledError",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    seconds: float
    seed: int
    fault_interval: float  # seconds
    clients: int
    pause: float  # mean seconds between two requests of a client
    num_requests: int  # how many different requests there are
    sample_interval: float  # seconds
    is_soak: bool = False


async def collect_references(url: str, requests: list[ChaosRequest]) -> tuple[dict[str, Answer], list[str]]:
    """Return the undisturbed answer of each request, and what is wrong with any."""
    load, answers, problems = ChaosLoad(url, {}), {}, []
    queue = iter(enumerate(requests))

    async def work(session: aiohttp.ClientSession) -> None:
        for number, request in queue:
            answers[make_key(request)] = answer = (await load.send(session, request, "reads", 1.0)).answer
            if answer.error or answer.num_ends != 1 or answer.problems:
                problems.append(f"reference {number} {request.path}: {answer.error or answer.problems} "
                                f"{answer.num_ends} ends: {request.body}")
    async with make_session() as session:
        await asyncio.gather(*(work(session) for _ in range(NUM_CONCURRENT_REFERENCES)))
    return answers, problems


async def run_on_server(server: ChaosServer, settings: RunSettings) -> RunReport:
    random = Random(f"load {settings.seed}")
    requests = draw_requests(random, settings.num_requests)
    references, findings = await collect_references(server.url, requests)
    async with make_session() as session:
        findings += await wait_until_idle(session, server.url)
        descriptors_before = count_descriptors(server)
        load = ChaosLoad(server.url, references)
        injector, watch = FaultInjector(server, load.drop_connections), ServerWatch(server, settings.sample_interval)
        start, is_over = time.monotonic(), asyncio.Event()

        async def inject_faults() -> None:
            async with asyncio.TaskGroup() as faults:
                for fault in plan_faults(settings.seed, settings.seconds, settings.fault_interval):
                    await asyncio.sleep(max(0.0, start + fault.at - time.monotonic()))
                    if not server.is_running:
                        findings.append(f"the server ended before {fault.kind} at {fault.at:.0f} s")
                        return
                    faults.create_task(injector.inject(fault))

        watching, probing = (asyncio.create_task(watch.run(is_over.is_set)),
                             asyncio.create_task(load.probe(session, is_over.is_set)))
        await asyncio.gather(inject_faults(), *(
            load.run_client(session, requests, Random(f"client {settings.seed} {number}"),
                            lambda: time.monotonic() > start + settings.seconds or not server.is_running,
                            settings.pause)
            for number in range(settings.clients)))
        is_over.set()
        await asyncio.gather(watching, probing)
        findings += [f"still held when idle: {held}" for held in await wait_until_idle(session, server.url)]
    watch.take_samples()
    findings += judge_descriptors(descriptors_before, count_descriptors(server))
    judge_cuts(load.records, watch.router_deaths, injector.descriptor_faults)
    set_recovery_times(injector.records, load.probe_times)
    memory = summarize_memory(watch.samples)
    findings += [*injector.problems, *collect_request_findings(load.records, start),
                 *judge_memory(memory, is_soak=settings.is_soak)]
    complete_gaps = [record.longest_gap for record in load.records if record.end == "complete"]
    return RunReport(0, settings.seed, settings.seconds, count_requests(load.records), count_errors(load),
                     summarize_faults(injector.records), round(max(complete_gaps, default=0.0), 2), memory,
                     list_samples(watch.samples, start), findings)


def count_descriptors(server: ChaosServer) -> dict[str, int]:
    uses = {role: server.measure(role) for role in ("launcher", "router")}
    return {role: use.num_descriptors for role, use in uses.items() if use is not None}


def count_errors(load: ChaosLoad) -> dict[str, int]:
    errors: dict[str, int] = {}
    for record in load.records:
        if record.error:
            errors[record.error[:160]] = errors.get(record.error[:160], 0) + 1
    return errors


def run_chaos(folder: Path, num_shard: int, settings: RunSettings) -> RunReport:
    """Run a server with this load and these faults, stop it, and report."""
    with run_chaos_server(folder, num_shard) as server:
        report = asyncio.run(run_on_server(server, settings))
        report.findings += [f"left behind: {leftover}" for leftover in server.stop()]
    report.num_shard = num_shard
    report.findings += [f"traceback: {line}" for line in server.list_tracebacks()
                        if not line.startswith(EXPECTED_TRACEBACKS)]
    return report
