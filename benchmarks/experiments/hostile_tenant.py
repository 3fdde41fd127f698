"""Harm that one tenant can do to another: first tokens and gaps of its streams, alone and beside a flood.

`weft serve` with a simulated model and keys of two tenants; this process is the load of both. Alone and beside each
flood are measured in turn. `python -P -m benchmarks.experiments.hostile_tenant --help` lists the settings. The last
line is JSON. Floods and server share the machine, so that a small one shows more than the router's part.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import uvloop
from cyclopts import Parameter

from benchmarks.harness.experiment import ExperimentSettings, PositiveFloat, PositiveInt, format_columns, run_experiment
from benchmarks.harness.processes import run_weft_serve
from benchmarks.harness.results import report_results
from router.simulation.run_stats import percentile

SIMULATED_MODEL = Path("weft/simulated")
STEP_SECONDS = 0.02  # of the simulated model
MAX_RATIO = 1.2  # beside one step more
NUM_STREAMS, OUTPUT_TOKENS = 4, 30  # of the tenant that is measured
LONG_TEXT = "the loom and the weaver " * 600
KEYS: Mapping[str, Mapping[str, str]] = {"sk-quiet": {"tenant": "quiet"}, "sk-hostile": {"tenant": "hostile"}}
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
    seconds: PositiveFloat = 15.0
    "For how long each measurement runs."
    rounds: PositiveInt = 2
    "How often each flood is measured, and the tenant alone before it."
    clients: PositiveInt = 16
    "How many requests of the flood are under way at once."
    floods: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = tuple(FLOODS)
    "Which floods."


@dataclass(slots=True)
class Latencies:
    """First tokens and gaps of streams, in seconds."""

    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def p99(self) -> tuple[float, float]:
        return percentile(self.first_tokens, 99), percentile(self.gaps, 99)


@dataclass(frozen=True, slots=True)
class FloodOutcome:
    """P99 of first tokens and gaps, alone and beside a flood, in seconds."""

    name: str
    first_token_alone: float
    first_token: float
    gap_alone: float
    gap: float
    num_flood_requests: int

    @property
    def is_within_bounds(self) -> bool:
        return (self.first_token <= MAX_RATIO * self.first_token_alone + STEP_SECONDS
                and self.gap <= MAX_RATIO * self.gap_alone + STEP_SECONDS)

    def to_row(self) -> Sequence[Any]:
        return (self.name, 1e3 * self.first_token_alone, 1e3 * self.first_token,
                self.first_token / self.first_token_alone, 1e3 * self.gap_alone, 1e3 * self.gap,
                self.gap / self.gap_alone, self.num_flood_requests, "yes" if self.is_within_bounds else "no")


COLUMNS = (("flood", "{0}"), ("first ms", "{1:.1f}"), ("flooded", "{2:.1f}"), ("ratio", "{3:.2f}"),
           ("gap ms", "{4:.1f}"), ("flooded", "{5:.1f}"), ("ratio", "{6:.2f}"), ("requests", "{7}"), ("within", "{8}"))


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


async def flood(http: aiohttp.ClientSession, name: str, numbers: "count[int]") -> None:
    """Send requests of a flood, one after the other, until cancelled."""
    path, make_body = FLOODS[name]
    while True:
        async with http.post(path, data=json.dumps(make_body(next(numbers))), headers=make_headers("sk-hostile") | {
                "Content-Type": "application/json"}) as answer:
            await answer.read()


def make_headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def measure_flood(http: aiohttp.ClientSession, name: str, settings: HostileTenantSettings,
                        numbers: "count[int]") -> FloodOutcome:
    alone, beside, first_number = Latencies(), Latencies(), next(numbers)
    for _ in range(settings.rounds):
        await measure_streams(http, settings.seconds, alone)
        clients = [asyncio.create_task(flood(http, name, numbers)) for _ in range(settings.clients)]
        await measure_streams(http, settings.seconds, beside)
        failures = [client.exception() for client in clients if client.done()]
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        if failures:
            raise ValueError(f"the flood of {name} failed: {failures[0]}")
    (first_token_alone, gap_alone), (first_token, gap) = alone.p99(), beside.p99()
    return FloodOutcome(name, first_token_alone, first_token, gap_alone, gap, next(numbers) - first_number - 1)


async def measure_floods(url: str, settings: HostileTenantSettings) -> list[FloodOutcome]:
    numbers = count()
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:
        return [await measure_flood(http, name, settings, numbers) for name in settings.floods]


def bench(settings: HostileTenantSettings = HostileTenantSettings()) -> None:
    """Measure what floods of one tenant do to another."""
    for name in settings.floods:
        if name not in FLOODS:
            raise ValueError(f"--floods must be of {', '.join(FLOODS)}, got {name}")
    with tempfile.TemporaryDirectory() as folder:
        keys, adapters = Path(folder, "keys.json"), Path(folder, "adapters")
        keys.write_text(json.dumps(KEYS))
        adapters.mkdir()
        with run_weft_serve(SIMULATED_MODEL, adapters, ("--api-keys", str(keys), "--no-request-log")) as url:
            outcomes = uvloop.run(measure_floods(url, settings))
    report_results("hostile-tenant", format_columns(COLUMNS, [outcome.to_row() for outcome in outcomes], width=12),
                   {"floods": [{"name": outcome.name, "first_token_p99_ms": 1e3 * outcome.first_token,
                                "first_token_p99_alone_ms": 1e3 * outcome.first_token_alone,
                                "gap_p99_ms": 1e3 * outcome.gap, "gap_p99_alone_ms": 1e3 * outcome.gap_alone}
                               for outcome in outcomes]}, should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
