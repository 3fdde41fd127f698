"""Replicas behind front ends: requests per second, added latency, prefix hits, adapter loads, and errors of clients
while a replica is killed and while one is stopped.

Replicas are `weft serve weft/simulated`, which waits instead of computing, so that the cores of this machine are not
the limit. All front ends are measured beside the same replicas.
`python -P -m benchmarks.experiments.load_balancer_comparison --help` lists the settings. The last line is JSON.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any, Protocol

import aiohttp
import uvloop
from cyclopts import Parameter

from benchmarks.harness.experiment import (
    ExperimentSettings,
    PositiveFloat,
    PositiveInt,
    PositiveInts,
    format_columns,
    run_experiment,
)
from benchmarks.harness.load_balancers import LOAD_BALANCERS, run_load_balancer
from benchmarks.harness.processes import HOST, find_free_port
from benchmarks.harness.ray_cluster import RayCluster, run_ray_cluster, wait_until
from benchmarks.harness.reporting import report_results

DIRECT = "direct"  # no front end: clients take turns at the replicas
# Python of an environment with Ray and weft's packages; the front end of that name has replicas of its own.
RAY_SERVE, RAY_VARIABLE = "ray serve", "RAY_PYTHON"
REPLICA_LABEL_PATTERN = re.compile(r'\{replica="[^"]*"\}|(?<=\{)replica="[^"]*",')
DEMO_ADAPTER = Path(__file__).parents[2] / "launcher" / "demo" / "adapters" / "pirate"
NUM_PREFIXES, PREFIX_LENGTH = 64, 768  # shared prefixes, and their tokens
NUM_ADAPTERS = 64
OUTPUT_TOKENS, SHORT_OUTPUT_TOKENS = 32, 4
MAX_BATCH_SIZE = 8
# Half of the prefixes fit into the cache of a replica, and a quarter of the adapters onto its shard.
REPLICA_FLAGS = ("--max-batch-size", str(MAX_BATCH_SIZE), "--simulated-num-blocks",
                 str(NUM_PREFIXES * PREFIX_LENGTH // 16 // 2 + 400), "--max-active-adapters", str(NUM_ADAPTERS // 4),
                 "--adapter-source", "local", "--shutdown-delay", "3", "--adapter-cycle-time-s", "0.1")
START_TIMEOUT_SECONDS = 60.0
STREAM_FIELDS = {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancerComparisonSettings(ExperimentSettings):
    replicas: PositiveInts = (1, 2, 3)
    "Numbers of replicas; one row for each."
    front_ends: tuple[str, ...] = (DIRECT, *LOAD_BALANCERS, RAY_SERVE)
    "Front ends to measure; those that are not installed are skipped."
    clients: PositiveInt = 12
    "Clients per replica. Each sends one request after the other."
    seconds: PositiveFloat = 5.0
    "Seconds of each load."


class Replica:
    """One server at a port of its own, in a group of processes that can be killed together."""

    def __init__(self, folder: Path, adapter_root: Path) -> None:
        self.port, self.adapter_root = find_free_port(), adapter_root
        self._command = [sys.executable, "-P", "-m", "launcher.cli", "serve", "weft/simulated", "--port",
                         str(self.port), "--adapter-root", str(adapter_root), *REPLICA_FLAGS]
        self._environment = {**os.environ, "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / f"cache-{self.port}")}
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment, start_new_session=True,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < end:
            with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{self.port}/ready", timeout=1.0):
                return
            time.sleep(0.1)
        raise ValueError("a replica did not start")

    def send_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def restart(self) -> None:
        """Wait for its end, and start it again at the same port."""
        self._process.wait()
        self.start()
        self.wait_until_ready()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGINT)  # without the delay
            self._process.wait()


@contextmanager
def launch_replicas(number: int) -> Iterator[list[Replica]]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        adapter_root = Path(folder, "adapters")
        write_adapters(adapter_root)
        replicas = []
        for _ in range(number):
            replicas.append(Replica(Path(folder), adapter_root))
            stack.callback(replicas[-1].stop)
        for replica in replicas:
            replica.wait_until_ready()
        yield replicas


def write_adapters(root: Path) -> None:
    """Write adapters that differ in one number, since equal ones are loaded once."""
    config = json.loads((DEMO_ADAPTER / "adapter_config.json").read_text())
    for number in range(NUM_ADAPTERS):
        (folder := root / f"adapter-{number}").mkdir(parents=True)
        (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": number + 1}))
        shutil.copy(DEMO_ADAPTER / "adapter_model.safetensors", folder)


@dataclass(slots=True)
class Outcomes:
    """Outcomes that clients saw."""

    num_complete: int = 0
    num_cut: int = 0  # answers that ended early, after they had begun
    num_refused: int = 0  # everything else: no answer, or another status than 200
    first_token_seconds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def num_errors(self) -> int:
        return self.num_cut + self.num_refused


async def send_request(http: aiohttp.ClientSession, url: str, body: dict[str, Any], outcomes: Outcomes) -> None:
    """Send a streamed completion, and note what became of it."""
    sent_at, times, has_begun, usage = time.perf_counter(), list[float](), False, None
    with suppress(aiohttp.ClientError, ValueError):
        async with http.post(f"{url}/v1/completions", json=body | STREAM_FIELDS) as answer:
            has_begun = answer.status == 200
            async for chunk in iter_chunks(answer):
                usage = chunk.get("usage") or usage
                if chunk.get("choices"):
                    times.append(time.perf_counter())
    if usage is not None and usage["completion_tokens"] == body["max_tokens"]:
        outcomes.num_complete += 1
        outcomes.first_token_seconds.append(times[0] - sent_at)
        outcomes.gaps += [later - earlier for earlier, later in pairwise(times)]
    elif has_begun:
        outcomes.num_cut += 1
    else:
        outcomes.num_refused += 1


def subtract_medians_ms(values: Sequence[float], direct_values: Sequence[float]) -> float:
    return 1e3 * (statistics.median(values) - statistics.median(direct_values))


async def iter_chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


MakeBody = Callable[[int], dict[str, Any]]


async def run_clients(urls: Sequence[str], num_clients: int, seconds: float, make_body: MakeBody,
                      numbers: Iterator[int]) -> Outcomes:
    """Let clients send one request after the other for some seconds. Each gets the next of `numbers`."""
    outcomes, end = Outcomes(), time.monotonic() + seconds

    async def run_client(http: aiohttp.ClientSession) -> None:
        while time.monotonic() < end:
            number = next(numbers)
            await send_request(http, urls[number % len(urls)], make_body(number), outcomes)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(run_client(http) for _ in range(num_clients)))
    return outcomes


def make_plain_body(number: int, num_tokens: int = OUTPUT_TOKENS) -> dict[str, Any]:
    return {"model": "weft/simulated", "prompt": f"{number} say something", "max_tokens": num_tokens}


def make_prefix_body(number: int) -> dict[str, Any]:
    """Return a request with one of the shared prefixes, and a few words of its own."""
    prefix = Random(1 + Random(number).randrange(NUM_PREFIXES))
    text = "".join(prefix.choices("abcdefgh ", k=PREFIX_LENGTH))
    return make_plain_body(number, SHORT_OUTPUT_TOKENS) | {"prompt": f"{text} {number}"}


def make_adapter_body(number: int) -> dict[str, Any]:
    return make_plain_body(number, SHORT_OUTPUT_TOKENS) | {
        "model": f"adapter-{Random(number).randrange(NUM_ADAPTERS)}"}


async def read_counters(urls: Sequence[str], *names: str) -> list[float]:
    """Return the sums of counters over all replicas, whose pages are at the URLs."""
    sums = dict.fromkeys(names, 0.0)
    async with aiohttp.ClientSession() as http:
        for url in urls:
            async with http.get(f"{url}/metrics") as answer:
                for line in (await answer.text()).splitlines():
                    name, _, value = REPLICA_LABEL_PATTERN.sub("", line).rpartition(" ")
                    if name in sums:
                        sums[name] += float(value)
    return [sums[name] for name in names]


class Fleet(Protocol):
    """The replicas behind a front end: where they are reached, and what happens to one of them."""

    @property
    def number(self) -> int: ...
    @property
    def direct_urls(self) -> Sequence[str]:
        """URLs of replicas like them, without the front end."""
    @property
    def metrics_urls(self) -> Sequence[str]:
        """URLs of the pages of all their metrics."""

    async def kill_one(self) -> None: ...
    async def trigger_graceful_shutdown(self) -> None: ...
    def restore(self) -> None:
        """Wait until all are there again."""


class LocalFleet:
    """Servers of this machine behind a proxy that knows their ports."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas, self.number = replicas, len(replicas)
        self.direct_urls = self.metrics_urls = [f"http://{HOST}:{replica.port}" for replica in replicas]

    async def kill_one(self) -> None:
        self._replicas[0].send_signal(signal.SIGKILL)

    async def trigger_graceful_shutdown(self) -> None:
        self._replicas[0].send_signal(signal.SIGTERM)

    def restore(self) -> None:
        self._replicas[0].restart()


class RayFleet:
    """Replicas behind Ray Serve, which starts and ends them itself."""

    def __init__(self, cluster: RayCluster, number: int, flags: Sequence[str], direct_url: str) -> None:
        self._cluster, self.number, self._flags = cluster, number, flags
        self.direct_urls, self.metrics_urls = [direct_url], [cluster.url]

    async def kill_one(self) -> None:
        os.kill(self._cluster.find_server_pids()[0], signal.SIGKILL)

    async def trigger_graceful_shutdown(self) -> None:
        """Update all, one after the other: nothing ends one alone."""
        await asyncio.to_thread(self._cluster.start_replicas, self.number, *self._flags, "--max-best-of", "3")

    def restore(self) -> None:
        wait_until(lambda: len(self._cluster.find_server_pids()) == self.number, "all replicas")
        time.sleep(5.0)  # until the last one is ready


@dataclass(frozen=True, slots=True)
class LoadBalancerPoint:
    """Figures of one front end before some replicas."""

    front_end: str
    replicas: int
    requests_per_second: float
    added_first_token_ms: float  # medians of single requests, less those sent directly, in turn
    added_gap_ms: float
    prefix_hit_percent: float
    adapter_loads: float  # for each hundred requests with adapters
    kill_cut: int  # clients' errors while a replica is killed: answers that had begun,
    kill_refused: int  # and requests without an answer
    drain_errors: int


class FrontEndMeasurement:
    """Measurement of one front end before running replicas."""

    def __init__(self, settings: LoadBalancerComparisonSettings, fleet: Fleet, urls: Sequence[str]) -> None:
        self._settings, self._fleet, self._urls = settings, fleet, urls
        self._num_clients = settings.clients * fleet.number
        self._numbers = count()  # of requests: no load repeats those of another

    def _run(self, make_body: MakeBody) -> Coroutine[Any, Any, Outcomes]:
        return run_clients(self._urls, self._num_clients, self._settings.seconds, make_body, self._numbers)

    async def measure(self, front_end: str) -> LoadBalancerPoint:
        plain = await self._run(make_plain_body)
        first_token_ms, gap_ms = await self._measure_added_ms()
        hit_percent, loads = await self._measure_hits(), await self._measure_loads()
        killed = await self._disturb(self._fleet.kill_one)
        drained = await self._disturb(self._fleet.trigger_graceful_shutdown)
        return LoadBalancerPoint(front_end, self._fleet.number, plain.num_complete / self._settings.seconds,
                                 first_token_ms, gap_ms, hit_percent, loads, killed.num_cut, killed.num_refused,
                                 drained.num_errors)

    async def _measure_added_ms(self) -> tuple[float, float]:
        """Return what the front end adds to the first token and to a gap of a request alone."""
        through, direct = Outcomes(), Outcomes()
        end = time.monotonic() + self._settings.seconds
        async with aiohttp.ClientSession() as http:
            for number in count():
                for urls, outcomes in ((self._urls, through), (self._fleet.direct_urls, direct)):
                    await send_request(http, urls[number % len(urls)], make_plain_body(number, 8), outcomes)
                if time.monotonic() > end:
                    break
        return (subtract_medians_ms(through.first_token_seconds, direct.first_token_seconds),
                subtract_medians_ms(through.gaps, direct.gaps))

    async def _measure_hits(self) -> float:
        names = "tgi_prefix_hit_tokens", "tgi_prefix_query_tokens"
        await self._run(make_prefix_body)  # fills the caches, and a router's memory of prefixes
        before = await read_counters(self._fleet.metrics_urls, *names)
        await self._run(make_prefix_body)
        hits, queries = (after - earlier for after, earlier in
                         zip(await read_counters(self._fleet.metrics_urls, *names), before, strict=True))
        return 100 * hits / max(queries, 1.0)

    async def _measure_loads(self) -> float:
        names = 'weft_adapter_loads{outcome="ok"}', "tgi_request_success"
        await self._run(make_adapter_body)
        before = await read_counters(self._fleet.metrics_urls, *names)
        await self._run(make_adapter_body)
        loads, requests = (after - earlier for after, earlier in
                           zip(await read_counters(self._fleet.metrics_urls, *names), before, strict=True))
        return 100 * loads / max(requests, 1.0)

    async def _disturb(self, end_one: Callable[[], Coroutine[Any, Any, None]]) -> Outcomes:
        """Run a load in the middle of which the first of several replicas ends; have it start again afterwards."""
        if self._fleet.number == 1:
            return Outcomes()

        async def end_one_later() -> None:
            await asyncio.sleep(self._settings.seconds / 3)
            await end_one()
        ending = asyncio.create_task(end_one_later())
        outcomes = await run_clients(self._urls, self._num_clients, 2 * self._settings.seconds,
                                     lambda index: make_plain_body(index, SHORT_OUTPUT_TOKENS), self._numbers)
        await ending
        await asyncio.to_thread(self._fleet.restore)
        await asyncio.sleep(3.0)  # until health checks have seen it
        return outcomes


def measure_front_end(settings: LoadBalancerComparisonSettings, name: str,
                      replicas: Sequence[Replica]) -> LoadBalancerPoint | None:
    """Return the figures of a front end, or None if it is not installed."""
    fleet = LocalFleet(replicas)
    if name == DIRECT:
        return uvloop.run(FrontEndMeasurement(settings, fleet, fleet.direct_urls).measure(name))
    program = os.environ.get(RAY_VARIABLE) if name == RAY_SERVE else LOAD_BALANCERS[name].find_program()
    if program is None:
        print(f"{name} is not installed", file=sys.stderr)
        return None
    if name == RAY_SERVE:
        return measure_ray_serve(settings, Path(program), len(replicas))
    with run_load_balancer(name, [replica.port for replica in replicas]) as url:
        return uvloop.run(FrontEndMeasurement(settings, fleet, [url]).measure(name))


def measure_ray_serve(settings: LoadBalancerComparisonSettings, python: Path, number: int) -> LoadBalancerPoint:
    """Return the figures of Ray Serve, with replicas of its own. `python` is that of an environment with Ray."""
    with launch_replicas(1) as [direct], run_ray_cluster(python) as cluster:
        flags = ("weft/simulated", "--adapter-root", str(direct.adapter_root), *REPLICA_FLAGS)
        url = cluster.start_replicas(number, *flags)
        fleet = RayFleet(cluster, number, flags, f"http://{HOST}:{direct.port}")
        return uvloop.run(FrontEndMeasurement(settings, fleet, [url]).measure(RAY_SERVE))


COLUMNS = (("front end", "{0.front_end}"), ("replicas", "{0.replicas}"), ("req/s", "{0.requests_per_second:.1f}"),
           ("+first ms", "{0.added_first_token_ms:.2f}"), ("+gap ms", "{0.added_gap_ms:.2f}"),
           ("hits %", "{0.prefix_hit_percent:.1f}"), ("loads/100", "{0.adapter_loads:.1f}"),
           ("kill cut", "{0.kill_cut}"), ("kill other", "{0.kill_refused}"), ("drain", "{0.drain_errors}"))


def bench(settings: LoadBalancerComparisonSettings = LoadBalancerComparisonSettings()) -> None:
    """Measure replicas behind each front end."""
    points = []
    for number in settings.replicas:
        with launch_replicas(number) as replicas:
            for name in settings.front_ends:
                point = measure_front_end(settings, name, replicas)
                if point is not None:
                    points.append(point)
                    print(json.dumps(asdict(point)), file=sys.stderr)
    rows = [(point,) for point in points]
    report_results("replicas", format_columns(COLUMNS, rows, width=12),
                   {"clients": settings.clients, "seconds": settings.seconds,
                    "points": [asdict(point) for point in points]}, should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
