"""Harm that one tenant can do to another: first tokens and gaps of its streams, alone and beside a flood.

`weft serve` with a simulated model and keys of two tenants. This process is the tenant that is measured; floods come
from another one, which gets the processor only when nobody else wants it, as if it ran on a machine of its own. Alone
and beside each flood are measured in turn, in short rounds. The seconds of the processor that the server's processes
took beside a flood, as parts of the time, say who works. `python -P -m benchmarks.experiments.hostile_tenant --help`
lists the settings. The last line is JSON.
"""

import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import uvloop
from cyclopts import Parameter

from benchmarks.harness.experiment import ExperimentSettings, PositiveFloat, PositiveInt, format_columns, run_experiment
from benchmarks.harness.processes import make_adapter_flags, read_cpu_seconds_by_program, run_weft_serve
from benchmarks.harness.reporting import report_results
from router.simulation.run_stats import percentile

SIMULATED_MODEL = Path("weft/simulated")
STEP_SECONDS = 0.02  # of the simulated model
MAX_RATIO = 1.2  # beside one step more
NUM_STREAMS, OUTPUT_TOKENS = 4, 10  # of the tenant that is measured
FLOOD_NICENESS = 19
SETTLE_SECONDS = 1.0  # after a flood
LONG_TEXT = "the loom and the weaver " * 600
KEYS: Mapping[str, Mapping[str, str]] = {"sk-quiet": {"tenant": "quiet"}, "sk-hostile": {"tenant": "hostile"}}
MIN_SHOWN_SHARE = 0.01  # of a processor
JsonObject = dict[str, Any]


def make_grammar_request(number: int) -> JsonObject:
    schema = {"type": "object", "properties": {f"field{number}_{index}": {"type": "string"} for index in range(30)}}
    return {"inputs": "a", "parameters": {"max_new_tokens": 1, "grammar": {"type": "json", "value": schema}}}


def make_adapter_request(number: int) -> JsonObject:
    return {"inputs": "a", "parameters": {"max_new_tokens": 1, "adapter_id": f"adapter-{number}"}}


def make_tools_request(number: int) -> JsonObject:
    tools = [{"type": "function", "function": {"name": f"call_{number}_{index}", "parameters": {
        "type": "object", "properties": {"x": {"type": "string"}}}}} for index in range(60)]
    return {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tools": tools}


def make_tokenize_request(number: int) -> JsonObject:
    return {"inputs": f"{number} {LONG_TEXT}"}


def make_long_prompt_request(number: int) -> JsonObject:
    return {"inputs": f"{number} {LONG_TEXT}", "parameters": {"max_new_tokens": 1}}


# Path and body of the requests of each flood.
FLOODS: Mapping[str, tuple[str, Callable[[int], JsonObject]]] = {
    "grammars": ("/generate", make_grammar_request), "adapters": ("/generate", make_adapter_request),
    "tools": ("/v1/chat/completions", make_tools_request), "tokenize": ("/tokenize", make_tokenize_request),
    "long prompts": ("/generate", make_long_prompt_request)}


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class HostileTenantSettings(ExperimentSettings):
    seconds: PositiveFloat = 5.0
    "Seconds of each measurement without and with the flood."
    rounds: PositiveInt = 5
    "Number of measurements of each kind."
    clients: PositiveInt = 16
    "Concurrent requests of the flood."
    floods: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = tuple(FLOODS)
    "Kinds of floods to measure."


@dataclass(slots=True)
class Latencies:
    """First tokens and gaps of streams, in seconds."""

    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def percentiles(self, percent: float = 99) -> tuple[float, float]:
        return percentile(self.first_tokens, percent), percentile(self.gaps, percent)


@dataclass(frozen=True, slots=True)
class FloodOutcome:
    """P99 of first tokens and gaps, alone and beside a flood, in seconds."""

    name: str
    first_token_alone: float
    first_token: float
    gap_alone: float
    gap: float
    num_flood_requests: int
    medians: Sequence[float] = ()  # of the four in the same order
    processor_shares: Mapping[str, float] = field(default_factory=dict)  # beside the flood, by program

    @property
    def is_within_bounds(self) -> bool:
        return (self.first_token <= MAX_RATIO * self.first_token_alone + STEP_SECONDS
                and self.gap <= MAX_RATIO * self.gap_alone + STEP_SECONDS)

    def to_row(self) -> Sequence[Any]:
        return (self.name, 1e3 * self.first_token_alone, 1e3 * self.first_token,
                self.first_token / self.first_token_alone, 1e3 * self.gap_alone, 1e3 * self.gap,
                self.gap / self.gap_alone, self.num_flood_requests, "yes" if self.is_within_bounds else "no")

    def describe(self) -> str:
        medians = ", ".join(f"{1e3 * seconds:.1f}" for seconds in self.medians)
        shares = ", ".join(f"{name} {share:.2f}" for name, share in sorted(self.processor_shares.items())
                           if share >= MIN_SHOWN_SHARE)
        return f"{self.name}: medians {medians} ms; processors {shares}"

    def to_json(self) -> JsonObject:
        return {"name": self.name, "first_token_p99_ms": 1e3 * self.first_token,
                "first_token_p99_alone_ms": 1e3 * self.first_token_alone, "gap_p99_ms": 1e3 * self.gap,
                "gap_p99_alone_ms": 1e3 * self.gap_alone, "processor_shares": dict(self.processor_shares)}


COLUMNS = (("flood", "{0}"), ("first ms", "{1:.1f}"), ("flooded", "{2:.1f}"), ("ratio", "{3:.2f}"),
           ("gap ms", "{4:.1f}"), ("flooded", "{5:.1f}"), ("ratio", "{6:.2f}"), ("requests", "{7}"), ("within", "{8}"))


# -- the tenant that is measured


async def measure_streams(http: aiohttp.ClientSession, seconds: float, latencies: Latencies) -> None:
    """Let the quiet tenant stream for some seconds, and note its latencies."""
    end, numbers = time.monotonic() + seconds, count()

    async def stream_in_a_loop() -> None:
        while time.monotonic() < end:
            last_at, has_first = time.monotonic(), False
            body = {"inputs": f"say {next(numbers)}", "parameters": {"max_new_tokens": OUTPUT_TOKENS}}
            async with http.post("/generate_stream", json=body, headers=make_headers("sk-quiet")) as answer:
                async for line in answer.content:
                    if not line.startswith(b"data:"):
                        continue
                    now = time.monotonic()
                    (latencies.gaps if has_first else latencies.first_tokens).append(now - last_at)
                    last_at, has_first = now, True
    await asyncio.gather(*(stream_in_a_loop() for _ in range(NUM_STREAMS)))


async def measure_flood(http: aiohttp.ClientSession, name: str, settings: HostileTenantSettings,
                        flooding: Connection) -> FloodOutcome:
    alone, beside, processor_seconds, num_requests = Latencies(), Latencies(), Counter[str](), 0
    for _ in range(settings.rounds):
        await measure_streams(http, settings.seconds, alone)
        flooding.send(name)
        await asyncio.sleep(SETTLE_SECONDS)
        seconds_before = Counter(read_cpu_seconds_by_program(os.getpid()))
        await measure_streams(http, settings.seconds, beside)
        processor_seconds += Counter(read_cpu_seconds_by_program(os.getpid())) - seconds_before
        flooding.send(None)
        num_requests += await asyncio.to_thread(flooding.recv)
        await asyncio.sleep(SETTLE_SECONDS)
    (first_token_alone, gap_alone), (first_token, gap) = alone.percentiles(), beside.percentiles()
    (median_alone, median_gap_alone), (median, median_gap) = alone.percentiles(50), beside.percentiles(50)
    shares = {program: seconds / (settings.rounds * settings.seconds) for program, seconds in processor_seconds.items()}
    return FloodOutcome(name, first_token_alone, first_token, gap_alone, gap, num_requests,
                        (median_alone, median, median_gap_alone, median_gap), shares)


async def measure_floods(url: str, settings: HostileTenantSettings, flooding: Connection) -> list[FloodOutcome]:
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:
        await measure_streams(http, settings.seconds, Latencies())  # what is loaded with the first requests
        return [await measure_flood(http, name, settings, flooding) for name in settings.floods]


def make_headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# -- the process of floods


@contextmanager
def run_flooding_process(url: str, num_clients: int) -> Iterator[Connection]:
    """Run a process that floods the server. It takes the name of a flood, or None, on which it ends the flood and
    answers with the number of its requests."""
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=serve_floods, args=(other, url, num_clients), daemon=True)
    process.start()
    other.close()
    try:
        yield connection
    finally:
        connection.close()
        process.join()


def serve_floods(connection: Connection, url: str, num_clients: int) -> None:
    os.nice(FLOOD_NICENESS)
    uvloop.run(send_floods(connection, url, num_clients))


async def send_floods(connection: Connection, url: str, num_clients: int) -> None:
    numbers, clients, first_number = count(), list[asyncio.Task[None]](), 0
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:
        while True:
            try:
                name = await asyncio.to_thread(connection.recv)
            except EOFError:
                return
            if name is not None:
                first_number = next(numbers)
                clients = [asyncio.create_task(flood(http, name, numbers)) for _ in range(num_clients)]
                continue
            failures = [client.exception() for client in clients if client.done()]
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            if failures:
                raise ValueError(f"the flood failed: {failures[0]}")
            connection.send(next(numbers) - first_number - 1)


async def flood(http: aiohttp.ClientSession, name: str, numbers: "count[int]") -> None:
    """Send requests of a flood, one after the other, until cancelled."""
    path, make_body = FLOODS[name]
    while True:
        async with http.post(path, data=json.dumps(make_body(next(numbers))), headers=make_headers("sk-hostile") | {
                "Content-Type": "application/json"}) as answer:
            await answer.read()


def bench(settings: HostileTenantSettings = HostileTenantSettings()) -> None:
    """Measure what floods of one tenant do to another."""
    for name in settings.floods:
        if name not in FLOODS:
            raise ValueError(f"--floods must be of {', '.join(FLOODS)}, got {name}")
    with tempfile.TemporaryDirectory() as folder:
        keys, adapters = Path(folder, "keys.json"), Path(folder, "adapters")
        keys.write_text(json.dumps(KEYS))
        adapters.mkdir()
        with (run_weft_serve(SIMULATED_MODEL, (*make_adapter_flags(adapters),
                                              "--api-keys", str(keys), "--no-request-log")) as url,
              run_flooding_process(url, settings.clients) as flooding):
            outcomes = uvloop.run(measure_floods(url, settings, flooding))
    table = format_columns(COLUMNS, [outcome.to_row() for outcome in outcomes], width=12)
    report_results("hostile-tenant", "\n".join([table, *(outcome.describe() for outcome in outcomes)]),
                   {"floods": [outcome.to_json() for outcome in outcomes]}, should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
