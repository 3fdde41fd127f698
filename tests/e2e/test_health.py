"""Tests of the health probes of `weft serve`: a hanging shard, a poisonous request, full load, start and stop."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.metrics_page import parse_metrics
from support.servers.concurrent_streams import (
    NUM_STREAMS,
    PROBE_INTERVAL_SECONDS,
    HealthProbe,
    disturb_nothing,
    make_stream_body,
    read_stream_events,
    run_disturbed_streams,
)
from support.servers.expected_streams import make_text_request
from support.servers.in_process_server import play_scenario
from support.servers.weft_process import SIMULATED_MODEL, WeftProcess, run_weft_process
from transformers import AutoTokenizer

from benchmarks.harness.processes import find_free_port
from router.errors import GenerationFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHARD_MODULE = "shard.rpc.server"
FAILING_PROGRAM = str(Path(__file__).parents[1] / "support" / "servers" / "failing_model.py")  # also of its shards
# threads wait for each other on a busy machine
SERVER_ARGUMENTS = ("--max-batch-total-tokens", "65536", "--threads", "1")
POISON_CHARACTER = "\N{EURO SIGN}"  # no other prompt holds it
MAX_FAILED_STEPS = 8  # enough to find one bad request among 32


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def weft_and_startup(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[
        tuple[WeftProcess, list[tuple[Any, ...]]]]:
    """Yield a server that gives a silent shard a minute and whose steps fail with POISON_CHARACTER, and what its probes
    answered while it started."""
    [poison] = AutoTokenizer.from_pretrained(model_folder)(POISON_CHARACTER, add_special_tokens=False)["input_ids"][:1]
    command, port = (sys.executable, "-P", FAILING_PROGRAM, str(poison)), find_free_port()
    arguments = (str(model_folder), *SERVER_ARGUMENTS, "--shard-response-timeout", "60",
                 "--max-concurrent-requests", "64")
    with ThreadPoolExecutor(1) as threads:
        probe_answers = threads.submit(lambda: asyncio.run(watch_startup(f"http://127.0.0.1:{port}")))
        with run_weft_process(tmp_path_factory.mktemp("weft"), *arguments, command=command, port=port) as server:
            yield server, probe_answers.result()
            server.send_signal(signal.SIGTERM)
            assert server.wait_for_exit()[0] == 0


@pytest.fixture(scope="module")
def weft(weft_and_startup: tuple[WeftProcess, list[tuple[Any, ...]]]) -> WeftProcess:
    return weft_and_startup[0]


@pytest.fixture(scope="module")
def undisturbed_streams(weft: WeftProcess) -> list[list[dict[str, Any]]]:
    return run_disturbed_streams(weft)


# -- a shard that hangs


def test_stopped_shard_makes_the_server_unready_until_it_continues(
        weft: WeftProcess, undisturbed_streams: list[Any]) -> None:
    [shard] = weft.find_child_pids(FAILING_PROGRAM)

    async def pause_shard(probe: HealthProbe) -> None:
        os.kill(shard, signal.SIGSTOP)
        print(f"unready after {await probe.wait_for_status('/ready', 503):.1f} s")
        assert [await probe.get_status(path) for path in ("/health", "/live", "/startup")] == [503, 200, 200]
        os.kill(shard, signal.SIGCONT)
        await probe.wait_for_status("/ready", 200)

    assert run_disturbed_streams(weft, pause_shard) == undisturbed_streams
    assert weft.find_child_pids(FAILING_PROGRAM) == [shard]


# A stopped process is replaced however long a step may take.
@pytest.mark.parametrize(("model", "step_timeout"), [
    (SIMULATED_MODEL, "600"), *(pytest.param("llama", timeout, marks=pytest.mark.long) for timeout in ("5", "600"))])
def test_hanging_shard_is_replaced_and_streams_continue(
        model_folder: Path, tmp_path: Path, model: str, step_timeout: str) -> None:
    arguments = (str(model_folder), *SERVER_ARGUMENTS) if model == "llama" else (model,)
    with run_weft_process(tmp_path, *arguments, "--step-timeout", step_timeout) as weft:
        undisturbed_streams = run_disturbed_streams(weft)
        [shard] = weft.find_child_pids(SHARD_MODULE)

        async def stop_shard(probe: HealthProbe) -> None:
            os.kill(shard, signal.SIGSTOP)
            unready = await probe.wait_for_status("/ready", 503)
            print(
                f"unready after {unready:.1f} s, ready again {await probe.wait_for_status('/ready', 200):.1f} s later")

        assert run_disturbed_streams(weft, stop_shard) == undisturbed_streams
        assert weft.find_child_pids(SHARD_MODULE) != [shard]


def test_stopped_shard_is_replaced_while_idle(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--shard-response-timeout", "1") as weft:
        [shard] = weft.find_child_pids(SHARD_MODULE)
        os.kill(shard, signal.SIGSTOP)
        while weft.find_child_pids(SHARD_MODULE) == [shard]:
            time.sleep(0.1)
        asyncio.run(wait_until_ready(weft))
        assert weft.generate(5) == "terry"


def test_router_that_was_paused_goes_on_with_its_shards(tmp_path: Path) -> None:
    """A router paused for 35 seconds had healthy shards killed when it went on."""
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--step-timeout", "2") as weft:
        undisturbed_streams = run_disturbed_streams(weft)
        shards, [router] = weft.find_child_pids(SHARD_MODULE), weft.find_child_pids("router")

        async def pause_router(_: HealthProbe) -> None:
            os.kill(router, signal.SIGSTOP)
            await asyncio.sleep(6)  # several times as long as a step may take
            os.kill(router, signal.SIGCONT)

        assert run_disturbed_streams(weft, pause_router) == undisturbed_streams
        assert weft.find_child_pids(SHARD_MODULE) == shards


def test_stopped_router_is_replaced(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL) as weft:
        shards, [router] = weft.find_child_pids(SHARD_MODULE), weft.find_child_pids("router")
        time.sleep(3.0)  # until it has sent a heartbeat
        os.kill(router, signal.SIGSTOP)
        while weft.find_child_pids("router") == [router]:
            time.sleep(0.1)
        asyncio.run(wait_until_ready(weft))
        assert weft.generate(5) == "terry"
        assert weft.find_child_pids(SHARD_MODULE) == shards
        weft.send_signal(signal.SIGTERM)
        code, errors = weft.wait_for_exit()
    assert code == 0
    assert "weft: router does not respond for 1" in errors


def test_restarted_router_has_a_hanging_shard_replaced(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL) as weft:
        [shard], [router] = weft.find_child_pids(SHARD_MODULE), weft.find_child_pids("router")
        os.kill(shard, signal.SIGSTOP)
        os.kill(router, signal.SIGKILL)
        asyncio.run(wait_until_ready(weft))
        assert weft.generate(5) == "terry"
        weft.send_signal(signal.SIGTERM)
        code, errors = weft.wait_for_exit()
    assert code == 0
    assert errors.count("starting the router again") == errors.count("starting all shards again") == 1


async def wait_until_ready(weft: WeftProcess) -> None:
    async with aiohttp.ClientSession(weft.url) as http:
        await HealthProbe(http).wait_for_status("/ready", 200)


# -- a request that makes every step fail


def test_only_the_poisonous_request_of_many_fails(weft: WeftProcess, undisturbed_streams: list[Any]) -> None:
    bodies = [make_stream_body(number) for number in range(NUM_STREAMS)]
    bodies[7]["inputs"] += POISON_CHARACTER
    num_failed_before = count_failed_steps(weft)
    streams = run_disturbed_streams(weft, disturb_nothing, bodies)
    assert streams.pop(7)[0]["error_type"] == "generation"
    assert streams == undisturbed_streams[:7] + undisturbed_streams[8:]
    assert 1 <= count_failed_steps(weft) - num_failed_before <= MAX_FAILED_STEPS


def count_failed_steps(weft: WeftProcess) -> float:
    with urlopen(f"{weft.url}/metrics") as page:
        return parse_metrics(page.read().decode())['tgi_shard_lost{loss="step_error"}']


def test_only_the_poisonous_simulated_request_of_many_fails(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        requests = [make_text_request(f"{number} " * 5 + POISON_CHARACTER * (number == 7), 40)
                    for number in range(NUM_STREAMS)]
        streams = await weft.collect_streams(*requests)
        assert isinstance(streams.pop(7).error, GenerationFailed)
        for stream in streams:
            stream.check_output(weft.model)
        assert 1 <= weft.rpc_counts["Reset"] - 1 <= MAX_FAILED_STEPS
        await weft.check_idle()
    play_scenario(scenario, tmp_path, faults=f"poison@{POISON_CHARACTER.encode()[0]}")


# -- no false alarm


@pytest.mark.parametrize("seconds", [
    2.0, pytest.param(600.0, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_full_server_stays_ready(weft: WeftProcess, seconds: float) -> None:
    probe_results = asyncio.run(probe_full_server(weft, seconds))
    assert set(probe_results) == {("/ready", 200), ("/live", 200), ("/health", 200)}
    assert len(probe_results) > seconds


async def probe_full_server(weft: WeftProcess, seconds: float) -> list[tuple[str, int]]:
    """Return the answers of the probes while twice as many clients send requests as can run."""
    end, probe_results = time.monotonic() + seconds, []

    async def send_requests_in_a_loop(http: aiohttp.ClientSession, number: int) -> None:
        while time.monotonic() < end:
            await read_stream_events(http, make_stream_body(number), lambda: None)

    async with aiohttp.ClientSession(weft.url, connector=aiohttp.TCPConnector(limit=0)) as http:
        clients = [asyncio.create_task(send_requests_in_a_loop(http, number % 32)) for number in range(64)]
        while time.monotonic() < end:
            probe_results += [(path, await HealthProbe(http).get_status(path))
                              for path in ("/ready", "/live", "/health")]
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)
        await asyncio.gather(*clients)
    return probe_results


# -- the beginning and the end


def test_stopping_server_is_unready_at_once_and_finishes_streams(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL) as weft:
        statuses = []

        async def stop_server(probe: HealthProbe) -> None:
            weft.send_signal(signal.SIGTERM)
            print(f"unready after {await probe.wait_for_status('/ready', 503):.2f} s")
            statuses.extend([await probe.get_status(path) for path in ("/ready", "/live", "/startup", "/info")])

        bodies = [{"inputs": f"{number}", "parameters": {"max_new_tokens": 100}} for number in range(100)]
        streams = run_disturbed_streams(weft, stop_server, bodies)
        assert weft.wait_for_exit()[0] == 0
    assert [len(events) for events in streams] == [100] * 100
    assert all(events[-1]["generated_text"] for events in streams)
    assert statuses == [503, 200, 200, 503]


def test_startup_probe_reports_progress_while_the_model_loads(
        weft_and_startup: tuple[WeftProcess, list[tuple[Any, ...]]]) -> None:
    _, probe_answers = weft_and_startup
    *before, (status, stage, ready, live, info) = probe_answers
    assert (status, stage, ready, live, info) == (200, {"phase": "ready"}, 200, 200, 200)
    assert before
    assert {answers[0] for answers in before} == {503}
    assert {answers[1]["phase"] for answers in before} <= {"load", "check", "warm-up"}
    *others, last = [tuple(answers[2:]) for answers in before]
    assert set(others) <= {(503, 200, 503)}
    assert last in {(503, 200, 503), (503, 200, 200), (200, 200, 200)}  # it became ready between two probes


async def watch_startup(url: str) -> list[tuple[Any, ...]]:
    """Return the answers of /startup, /ready, /live and /info, polled until the server is ready."""
    probe_answers: list[tuple[Any, ...]] = []
    async with aiohttp.ClientSession(url) as http:
        probe = HealthProbe(http)
        await probe.wait_for_status("/live", 200)
        while not probe_answers or probe_answers[-1][0] != 200:
            async with http.get("/startup", headers={"Connection": "close"}) as answer:
                stage = (answer.status, json.loads(await answer.text()))
            probe_answers.append((*stage, *[await probe.get_status(path) for path in ("/ready", "/live", "/info")]))
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)
    return probe_answers
