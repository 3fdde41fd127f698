"""Tests of the health probes of `weft serve`: a hanging shard, a poisonous request, full load, start and stop."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.concurrent_streams import INTERVAL, NUM_STREAMS, Probe, asked, hear_all, leave_alone, listen
from support.expected_streams import ask
from support.in_process_server import play
from support.small_checkpoints import tiny_checkpoint
from support.weft_process import SIMULATED, WEFT, Weft, serving
from transformers import AutoTokenizer

from router.errors import GenerationFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHARD = "shard.rpc.server"
SMALL = ("--max-batch-total-tokens", "65536", "--threads", "1")  # threads wait for each other on a busy machine
POISON = "\N{EURO SIGN}"  # no other prompt holds it
MOST_FAILED_STEPS = 8  # enough to find one bad request among 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    with serving(tmp_path_factory.mktemp("undisturbed"), str(model), *SMALL) as weft:
        return hear_all(weft)


# -- a shard that hangs


def test_a_shard_that_stops_makes_the_server_unready_and_goes_on_where_it_was(
        model: Path, tmp_path: Path, undisturbed: list[Any]) -> None:
    with serving(tmp_path, str(model), *SMALL) as weft:
        [shard] = weft.pids(SHARD)

        async def stop_for_a_while(probe: Probe) -> None:
            os.kill(shard, signal.SIGSTOP)
            print(f"unready after {await probe.until('/ready', 503):.1f} s")
            assert [await probe.status(path) for path in ("/health", "/live", "/startup")] == [503, 200, 200]
            os.kill(shard, signal.SIGCONT)
            await probe.until("/ready", 200)

        assert hear_all(weft, stop_for_a_while) == undisturbed
        assert weft.pids(SHARD) == [shard]


def test_a_shard_that_hangs_is_replaced_and_every_stream_goes_on(
        model: Path, tmp_path: Path, undisturbed: list[Any]) -> None:
    with serving(tmp_path, str(model), *SMALL, "--step-timeout", "5") as weft:
        [shard] = weft.pids(SHARD)

        async def stop(probe: Probe) -> None:
            os.kill(shard, signal.SIGSTOP)
            unready = await probe.until("/ready", 503)
            print(f"unready after {unready:.1f} s, ready again {await probe.until('/ready', 200):.1f} s later")

        assert hear_all(weft, stop) == undisturbed
        assert weft.pids(SHARD) != [shard]


def test_a_router_that_starts_while_its_shard_hangs_has_it_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED) as weft:
        [shard], [router] = weft.pids(SHARD), weft.pids("router")
        os.kill(shard, signal.SIGSTOP)
        os.kill(router, signal.SIGKILL)
        asyncio.run(until_ready(weft))
        assert weft.generate(5) == "terry"
        weft.signal(signal.SIGTERM)
        code, errors = weft.end()
    assert code == 0
    assert errors.count("starting the router again") == errors.count("starting all shards again") == 1


async def until_ready(weft: Weft) -> None:
    async with aiohttp.ClientSession(weft.url) as http:
        await Probe(http).until("/ready", 200)


# -- a request that makes every step fail


def test_of_many_requests_only_the_poisonous_one_fails(
        model: Path, tmp_path: Path, undisturbed: list[Any]) -> None:
    ids = AutoTokenizer.from_pretrained(model)(POISON, add_special_tokens=False)["input_ids"]
    command = (sys.executable, "-P", str(Path(__file__).parents[1] / "support" / "failing_model.py"), str(ids[0]))
    bodies = [asked(number) for number in range(NUM_STREAMS)]
    bodies[7]["inputs"] += POISON
    with serving(tmp_path, str(model), *SMALL, command=command) as weft:
        heard = hear_all(weft, leave_alone, bodies)
        weft.signal(signal.SIGTERM)
        code, errors = weft.end()
    assert [heard.pop(7)[0]["error_type"], code] == ["generation", 0]
    assert heard == undisturbed[:7] + undisturbed[8:]
    assert 1 <= errors.count("a step failed") <= MOST_FAILED_STEPS


def test_of_many_simulated_requests_only_the_poisonous_one_fails(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        requests = [ask(f"{number} " * 5 + POISON * (number == 7), 40) for number in range(NUM_STREAMS)]
        heard = await weft.hear(*requests)
        assert isinstance(heard.pop(7).error, GenerationFailed)
        for other in heard:
            other.check(weft.model)
        assert 1 <= weft.calls["Reset"] - 1 <= MOST_FAILED_STEPS
        await weft.check_idle()
    play(story, tmp_path, faults=f"poison@{POISON.encode()[0]}")


# -- no false alarm


@pytest.mark.parametrize("seconds", [
    2.0, pytest.param(600.0, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_server_that_is_full_is_ready_all_the_time(model: Path, tmp_path: Path, seconds: float) -> None:
    with serving(tmp_path, str(model), *SMALL, "--max-concurrent-requests", "64") as weft:
        looks = asyncio.run(look_at_a_full_server(weft, seconds))
    assert set(looks) == {("/ready", 200), ("/live", 200), ("/health", 200)}
    assert len(looks) > seconds


async def look_at_a_full_server(weft: Weft, seconds: float) -> list[tuple[str, int]]:
    """Return the answers of the probes while twice as many clients send requests as can run."""
    end, looks = time.monotonic() + seconds, []

    async def ask_again_and_again(http: aiohttp.ClientSession, number: int) -> None:
        while time.monotonic() < end:
            await listen(http, asked(number), lambda: None)

    async with aiohttp.ClientSession(weft.url, connector=aiohttp.TCPConnector(limit=0)) as http:
        clients = [asyncio.create_task(ask_again_and_again(http, number % 32)) for number in range(64)]
        while time.monotonic() < end:
            looks += [(path, await Probe(http).status(path)) for path in ("/ready", "/live", "/health")]
            await asyncio.sleep(INTERVAL)
        await asyncio.gather(*clients)
    return looks


# -- the beginning and the end


def test_what_is_asked_to_stop_is_unready_at_once_and_cuts_nobody_off(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED) as weft:
        statuses = []

        async def stop(probe: Probe) -> None:
            weft.signal(signal.SIGTERM)
            print(f"unready after {await probe.until('/ready', 503):.2f} s")
            statuses.extend([await probe.status(path) for path in ("/ready", "/live", "/startup", "/info")])

        bodies = [{"inputs": f"{number}", "parameters": {"max_new_tokens": 100}} for number in range(100)]
        heard = hear_all(weft, stop, bodies)
        assert weft.end()[0] == 0
    assert [len(events) for events in heard] == [100] * 100
    assert all(events[-1]["generated_text"] for events in heard)
    assert statuses == [503, 200, 200, 503]


def test_who_asks_while_the_model_is_loaded_is_told_how_far_it_is(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([WEFT, "serve", str(model), "--port", str(port), *SMALL], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    told = asyncio.run(watch_the_start(f"http://127.0.0.1:{port}"))
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0
    *before, (status, stage, ready, live, other) = told
    assert (status, stage, ready, live, other) == (200, {"phase": "ready"}, 200, 200, 200)
    assert before
    assert {answers[0] for answers in before} == {503}
    assert {answers[1]["phase"] for answers in before} <= {"load", "check", "warm-up"}
    *others, last = [tuple(answers[2:]) for answers in before]
    assert set(others) <= {(503, 200, 503)}
    assert last in {(503, 200, 503), (503, 200, 200), (200, 200, 200)}  # it became ready between two probes


async def watch_the_start(url: str) -> list[tuple[Any, ...]]:
    """Return the answers of /startup, /ready, /live and /info, polled until the server is ready."""
    told: list[tuple[Any, ...]] = []
    async with aiohttp.ClientSession(url) as http:
        probe = Probe(http)
        await probe.until("/live", 200)
        while not told or told[-1][0] != 200:
            async with http.get("/startup", headers={"Connection": "close"}) as answer:
                stage = (answer.status, json.loads(await answer.text()))
            told.append((*stage, *[await probe.status(path) for path in ("/ready", "/live", "/info")]))
            await asyncio.sleep(INTERVAL)
    return told
