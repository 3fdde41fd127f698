"""Replicas of weft on a real Ray cluster: the same answers as from one server, and what clients see of faults.

Only `make test-ray` runs these. All processes are real; those that a test kills are Ray's workers or weft's own.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import pytest
from support.servers.ray_environment import make_ray_environment
from support.servers.ray_load import COMPLETE, CUT, StreamLoad, make_body, read_metric, read_stream, wait_for_metric
from support.servers.weft_process import SIMULATED_MODEL, run_weft_process

from benchmarks.harness.ray_cluster import INGRESS_TITLE, RayCluster, run_ray_cluster, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
NUM_STREAMS, NUM_REPEATS = 16, 4
SLOW_STEPS = ("--simulated-seconds-per-step", "0.05")
RUNNING, SUCCESSES = "vllm:num_requests_running", "tgi_request_success"
CHAT = {"model": "tgi", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 12, "seed": 1,
        "temperature": 0}
PAIRS = [  # requests whose answers hold nothing that changes from one to the next
    ("POST", "/generate", make_body(1, 8)), ("POST", "/generate_stream", make_body(2, 24)),
    ("POST", "/", make_body(3, 8)), ("POST", "/generate", {"inputs": 5}),
    ("POST", "/generate", {"inputs": "x" * 3_000_000}),
    ("POST", "/v1/completions", {"model": "weft", "prompt": "x", "temperature": 9}), ("GET", "/v1/nothing", None),
    ("POST", "/v1/messages", {"model": "weft"}), ("GET", "/health", None), ("HEAD", "/health", None),
    ("DELETE", "/generate", None), ("OPTIONS", "/v1/chat/completions", None), ("POST", "/tokenize", make_body(1, 1)),
    ("GET", "/v1/models", None)]
VOLATILE_HEADERS = ("x-request-id", "date", "server", "connection", "keep-alive", "transfer-encoding", "content-length")
TIMES = ("time", "-ms", "x-wait-reason", "x-cached-tokens")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with run_ray_cluster(make_ray_environment()) as running:
        yield running


def deploy(cluster: RayCluster, *arguments: str) -> None:
    completed = cluster.deploy(*arguments)
    assert (completed.returncode, completed.stderr) == (0, ""), completed.stderr
    assert cluster.url in completed.stdout


@pytest.fixture(scope="module")
def demo(cluster: RayCluster) -> RayCluster:
    deploy(cluster, "weft/demo", "--replicas", "2")
    return cluster


@pytest.fixture(scope="module")
def two_replicas(cluster: RayCluster) -> RayCluster:
    deploy(cluster, SIMULATED_MODEL, "--replicas", "2", "--shutdown-timeout", "30", *SLOW_STEPS)
    return cluster


@pytest.fixture
def simulated(two_replicas: RayCluster) -> RayCluster:
    """Two replicas, both of which serve, of a model whose streams of 100 tokens take five seconds."""
    wait_for_replicas(two_replicas, 2)
    return two_replicas


def wait_for_replicas(cluster: RayCluster, number: int) -> None:
    """Wait until so many replicas exist, and the ingress sends requests to all of them."""
    async def is_settled() -> bool:
        before = await read_metric(cluster.url, SUCCESSES)
        async with StreamLoad(cluster.url, 4 * number, 1):
            pass
        after = await read_metric(cluster.url, SUCCESSES)
        return len(after) == number and all(after[name] > before.get(name, after[name]) for name in after)

    wait_until(lambda: len(cluster.find_replica_pids()) == number and asyncio.run(is_settled()),
               f"{number} replicas serve")


async def send(url: str, method: str, path: str, body: Any) -> tuple[int, dict[str, str], bytes]:
    async with aiohttp.ClientSession(auto_decompress=False) as client, client.request(
            method, url + path, data=None if body is None else BytesIO(json.dumps(body).encode()),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"}) as answer:
        kept = {name.lower(): value for name, value in answer.headers.items()
                if name.lower() not in VOLATILE_HEADERS and not any(mark in name.lower() for mark in TIMES)}
        return answer.status, kept, await answer.read()


def test_answers_are_those_of_one_server_byte_for_byte(demo: RayCluster, tmp_path: Path) -> None:
    with run_weft_process(tmp_path) as weft:
        for method, path, body in PAIRS:
            expected, got = (asyncio.run(send(url, method, path, body)) for url in (weft.url, demo.url))
            if path == "/v1/models":
                expected, got = ((status, headers, b"") for status, headers, _ in (expected, got))
            assert got == expected, (method, path)


def test_chat_is_streamed_with_its_usage(demo: RayCluster) -> None:
    async def run() -> list[str]:
        status, headers, content = await send(demo.url, "POST", "/v1/chat/completions", {
            **CHAT, "stream": True, "stream_options": {"include_usage": True}})
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        return content.decode().split("\n\n")

    *chunks, usage, done, rest = asyncio.run(run())
    assert (done, rest) == ("data: [DONE]", "")
    assert json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] == 12
    assert len(chunks) >= 12


def test_tokens_arrive_one_by_one(simulated: RayCluster) -> None:
    """Between the first and the last token of 40 there are 39 steps of 50 ms; a buffer would deliver all at once."""
    async def run() -> float:
        async with aiohttp.ClientSession(simulated.url) as client, client.post(
                "/generate_stream", json=make_body(0, 40)) as answer:
            times = [time.monotonic() async for line in answer.content if line.startswith(b"data:")]
        return times[-1] - times[0]

    assert asyncio.run(run()) > 39 * 0.05 * 0.8


@pytest.mark.parametrize("path", ["/generate_stream", "/generate"])
def test_client_that_leaves_cancels_its_request(simulated: RayCluster, path: str) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession(simulated.url) as client:
            request = asyncio.create_task(client.post(path, json=make_body(0, 4_000)))
            await wait_for_metric(simulated.url, RUNNING, 1)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        await wait_for_metric(simulated.url, RUNNING, 0)

    asyncio.run(run())


async def kill_under_streams(cluster: RayCluster, pid: int, late_ends: frozenset[str] = frozenset({COMPLETE})
                             ) -> StreamLoad:
    """Kill a process while streams run on both replicas, send requests at once, and check how these end."""
    async with StreamLoad(cluster.url, NUM_STREAMS, 100) as load:
        await wait_for_metric(cluster.url, RUNNING, NUM_STREAMS)
        assert min((await read_metric(cluster.url, RUNNING)).values()) >= 4
        os.kill(pid, signal.SIGKILL)
        async with aiohttp.ClientSession(cluster.url) as client:
            late = await asyncio.gather(*(read_stream(client, number, make_body(number, 4)) for number in range(8)))
    assert {record.end for record in late} <= late_ends
    return load


def check_cut_visibly(load: StreamLoad) -> None:
    """Check that some streams are complete, and the others ended as cut, never as if they were complete."""
    ends = load.count_ends()
    assert set(ends) == {COMPLETE, CUT}
    assert min(ends.values()) >= 4


def test_killed_replica_is_replaced_and_others_go_on(simulated: RayCluster) -> None:
    before, servers = simulated.find_replica_pids(), simulated.find_server_pids()
    check_cut_visibly(asyncio.run(kill_under_streams(simulated, before[0])))
    wait_for_replicas(simulated, 2)
    assert before[0] not in simulated.find_replica_pids()
    assert len({*servers} & {*simulated.find_server_pids()}) == 1


def test_killed_router_is_replaced_by_its_launcher(simulated: RayCluster) -> None:
    before, routers = simulated.find_replica_pids(), simulated.find_server_pids("router")
    check_cut_visibly(asyncio.run(kill_under_streams(simulated, routers[0])))
    assert simulated.find_replica_pids() == before
    assert len(simulated.find_server_pids("router")) == 2


def test_killed_server_takes_its_replica_along(simulated: RayCluster) -> None:
    """A router answers for a moment after its launcher is gone, so that a late stream may begin on it."""
    before = simulated.find_replica_pids()
    check_cut_visibly(asyncio.run(kill_under_streams(simulated, simulated.find_server_pids()[0],
                                                     frozenset({COMPLETE, CUT}))))
    wait_for_replicas(simulated, 2)
    assert simulated.find_replica_pids() != before


def test_killed_shard_pauses_streams_and_cuts_none(simulated: RayCluster) -> None:
    before = simulated.find_replica_pids()
    load = asyncio.run(kill_under_streams(simulated, simulated.find_server_pids("shard.rpc.server")[0]))
    assert load.count_ends() == {COMPLETE: NUM_STREAMS}
    assert simulated.find_replica_pids() == before


def test_killed_ingress_cuts_streams_and_is_replaced(simulated: RayCluster) -> None:
    load = asyncio.run(kill_under_streams(simulated, simulated.find_replica_pids(INGRESS_TITLE)[0]))
    assert load.count_ends() == {CUT: NUM_STREAMS}
    assert len(simulated.find_replica_pids(INGRESS_TITLE)) == 1


def test_request_without_an_answer_is_sent_to_another_replica(simulated: RayCluster) -> None:
    """Answers that are no streams begin at their end, so a killed replica has sent nothing of them."""
    async def run() -> list[int]:
        async with aiohttp.ClientSession(simulated.url) as client:
            async def ask(number: int) -> int:
                async with client.post("/generate", json=make_body(number, 60)) as answer:
                    await answer.read()
                    return answer.status

            tasks = [asyncio.create_task(ask(number)) for number in range(NUM_STREAMS)]
            await wait_for_metric(simulated.url, RUNNING, NUM_STREAMS)
            os.kill(simulated.find_replica_pids()[0], signal.SIGKILL)
            return await asyncio.gather(*tasks)

    assert set(asyncio.run(run())) == {200}


def test_update_cuts_no_stream(simulated: RayCluster) -> None:
    before = {*simulated.find_replica_pids(), *simulated.find_server_pids()}

    async def run() -> StreamLoad:
        async with StreamLoad(simulated.url, NUM_STREAMS, 200) as load:
            await wait_for_metric(simulated.url, RUNNING, NUM_STREAMS)
            update = asyncio.to_thread(deploy, simulated, SIMULATED_MODEL, "--replicas", "2", "--max-batch-size", "32",
                                       "--shutdown-timeout", "30", *SLOW_STEPS)
            later = asyncio.create_task(run_later_streams(simulated.url, update_task := asyncio.create_task(update)))
            await update_task
            assert set(await later) == {COMPLETE}
        return load

    assert asyncio.run(run()).count_ends() == {COMPLETE: NUM_STREAMS}
    assert not before & {*simulated.find_replica_pids(), *simulated.find_server_pids()}


async def run_later_streams(url: str, update: "asyncio.Task[None]") -> list[str]:
    """Send short streams, one after the other, until the update is over; return how they ended."""
    ends = list[str]()
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60.0)) as client:
        while not update.done():
            ends.append((await read_stream(client, 0, make_body(len(ends), 4))).end)
    return ends


def test_replicas_follow_the_load(cluster: RayCluster) -> None:
    deploy(cluster, SIMULATED_MODEL, "--replicas", "1", "--max-replicas", "3", "--target-ongoing-requests", "6",
           "--upscale-delay", "1", "--downscale-delay", "2", *SLOW_STEPS)
    wait_for_replicas(cluster, 1)

    async def run() -> tuple[StreamLoad, StreamLoad]:
        async with StreamLoad(cluster.url, NUM_STREAMS, 400) as first:
            await asyncio.to_thread(wait_for_replicas, cluster, 3)
            async with StreamLoad(cluster.url, NUM_STREAMS, 40) as second:
                pass
        return first, second

    for load in asyncio.run(run()):
        assert load.count_ends() == {COMPLETE: NUM_STREAMS}
    wait_until(lambda: len(cluster.find_replica_pids()) == 1, "one replica again")


@pytest.mark.parametrize(("routing", "is_found"), [("affinity", True), ("power-of-two", False)])
def test_prompts_go_where_their_beginning_is_cached(cluster: RayCluster, routing: str, *, is_found: bool) -> None:
    """64 prefixes of 1,000 tokens need two thirds of the caches of three replicas. By load alone each replica gets all
    of them, and has room for half."""
    deploy(cluster, SIMULATED_MODEL, "--replicas", "3", "--routing", routing, "--simulated-num-blocks", "2048",
           "--simulated-seconds-per-step", "0.002")
    wait_for_replicas(cluster, 3)
    usages = asyncio.run(send_prompts_with_prefixes(cluster.url))
    cached_tokens = sum(usage.get("prompt_tokens_details", {}).get("cached_tokens", 0) for usage in usages)
    share = cached_tokens / (NUM_REPEATS * 64 * 1_000)
    print(f"{routing}: {share:.2f} of the repeated prefixes' tokens were cached")
    assert (share > 0.9) is is_found, share


async def send_prompts_with_prefixes(url: str) -> list[dict[str, Any]]:
    """Send each prefix once, then several times with different ends in random order, eight requests at a time."""
    generator = random.Random(7)
    prefixes = [f"{number:04} {''.join(generator.choices('abcdefgh ', k=995))}" for number in range(64)]
    repeats = [f"{prefix}{number} What is it?" for prefix in prefixes for number in range(NUM_REPEATS)]
    generator.shuffle(repeats)
    slots = asyncio.Semaphore(8)

    async def ask(client: aiohttp.ClientSession, prompt: str) -> dict[str, Any]:
        async with slots, client.post("/v1/completions", json={
                "model": SIMULATED_MODEL, "prompt": prompt, "max_tokens": 4}) as answer:
            assert answer.status == 200, await answer.text()
            return dict((await answer.json())["usage"])

    async with aiohttp.ClientSession(url) as client:
        await asyncio.gather(*(ask(client, prompt) for prompt in prefixes))
        return await asyncio.gather(*(ask(client, prompt) for prompt in repeats))


def test_file_for_serve_deploy_runs(cluster: RayCluster, tmp_path: Path) -> None:
    """The file of deploy/ray, with a model that is at hand."""
    source = Path(__file__).parents[2] / "deploy/ray/serve.yaml"
    text = source.read_text().replace("org/name", SIMULATED_MODEL).replace("port: 8000", f"port: {cluster.http_port}")
    (tmp_path / "serve.yaml").write_text(text)
    assert cluster.run("serve", "shutdown", "-y").returncode == 0
    wait_until(lambda: not cluster.find_replica_pids(), "no replicas")
    completed = cluster.run("serve", "deploy", str(tmp_path / "serve.yaml"))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    wait_until(lambda: "status: RUNNING" in cluster.run("serve", "status").stdout, "running")
    with urlopen(f"{cluster.url}/info") as answer:
        assert json.load(answer)["model_id"] == SIMULATED_MODEL


def test_server_that_cannot_start_is_reported_in_one_line(cluster: RayCluster) -> None:
    completed = cluster.deploy(SIMULATED_MODEL, "--api-keys", "/nowhere/keys.json")
    assert (completed.returncode, completed.stderr.count("\n")) == (1, 1)
    assert "weft serve ended with exit code 2" in completed.stderr
    assert "cannot read /nowhere/keys.json (--api-keys)" in completed.stderr


def test_missing_cluster_is_reported_in_one_line(cluster: RayCluster) -> None:
    completed = cluster.deploy(SIMULATED_MODEL, "--address", "127.0.0.1:1")
    assert completed.returncode == 1
    assert completed.stderr == ("weft: there is no Ray cluster at 127.0.0.1:1 (--address); start one with "
                                "ray start --head\n")


def test_other_port_than_that_of_ray_serve_is_reported(cluster: RayCluster) -> None:
    completed = cluster.run("python", "-m", "launcher.cli", "deploy", "ray", SIMULATED_MODEL, "--port", "1")
    assert completed.returncode == 1
    assert "Ray Serve keeps the address of its first start" in completed.stderr
