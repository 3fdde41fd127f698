"""Tests of router/adapters/store_client.py with a scripted process, on the router's event loop."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from router.adapters import store_client
from router.adapters.store_client import AdapterStoreClient, write_line
from router.errors import AdapterLoadFailed

# Store process that sends `op` and the token back. It answers `hold` after the next request, exits at `die`, and
# prints no JSON at `odd`.
STORE_PROCESS_SCRIPT = """
import json, os, sys
token = sys.stdin.readline().strip()
held = []
for line in sys.stdin:
    heard = json.loads(line)
    if heard["op"] == "die":
        os._exit(1)
    if heard["op"] == "hold":
        held.append(heard)
        continue
    if heard["op"] == "ping":
        print(json.dumps({"id": 0}), flush=True)
        continue
    for each in [heard, *held]:
        print("what?" if each["op"] == "odd" else json.dumps({"id": each["id"], "op": each["op"], "token": token}),
              flush=True)
    held.clear()
"""


def run_scenario(scenario: Callable[[AdapterStoreClient], Awaitable[Any]]) -> None:
    async def main() -> None:
        store = AdapterStoreClient([sys.executable, "-c", STORE_PROCESS_SCRIPT], "secret")
        await scenario(store)
        await store.close()
    uvloop.run(main())


@pytest.mark.slow
def test_answers_are_matched_to_requests_in_any_order() -> None:
    async def scenario(store: AdapterStoreClient) -> None:
        later = asyncio.create_task(store.send_request(op="hold"))
        await asyncio.sleep(0)
        sooner = await store.send_request(op="x")
        assert (sooner["op"], sooner["token"], (await later)["op"]) == ("x", "secret", "hold")
    run_scenario(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["die", "odd"])
def test_process_exit_fails_pending_requests_and_the_next_request_restarts_it(end: str) -> None:
    async def scenario(store: AdapterStoreClient) -> None:
        waiting = asyncio.create_task(store.send_request(op="hold"))
        await asyncio.sleep(0)
        for question in (store.send_request(op=end), waiting):
            with pytest.raises(AdapterLoadFailed, match="ended; try again"):
                await question
        assert (await store.send_request(op="x"))["op"] == "x"
    run_scenario(scenario)


def make_dying_store(tmp_path: Path, num_deaths: int, beginning: str) -> AdapterStoreClient:
    """Return a store whose first processes end after these lines of Python."""
    script = (f"import os, pathlib, sys\nstarts = pathlib.Path({str(tmp_path)!r})\n"
              f"number = len(os.listdir(starts))\n(starts / str(number)).touch()\n"
              f"if number < {num_deaths}:\n    {beginning}\n    os._exit(1)\n{STORE_PROCESS_SCRIPT}")
    return AdapterStoreClient([sys.executable, "-c", script], "secret")


@pytest.mark.slow
@pytest.mark.parametrize("beginning", ["pass", "sys.stdin.close(); os.close(0)", "sys.stdin.readline()",
                                       "sys.stdin.readline(); sys.stdin.readline()"])
def test_request_whose_process_ended_is_asked_again_once(tmp_path: Path, beginning: str) -> None:
    """A process that was killed as it started left a client that wrote to its closed pipe for ever."""
    async def main() -> None:
        store = make_dying_store(tmp_path, 1, beginning)
        assert (await store.send_request(op="x"))["op"] == "x"
        await store.close()
        (tmp_path / "0").unlink()
        (tmp_path / "1").unlink()
        store = make_dying_store(tmp_path, 3, beginning)
        with pytest.raises(AdapterLoadFailed, match="ended; try again"):
            await store.send_request(op="x")
        assert (await store.send_request(op="x"))["op"] == "x"
        await store.close()
    uvloop.run(main())


@pytest.mark.slow
def test_request_that_fails_in_writing_and_in_reading_leaves_no_unread_error(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader noticed that the process had ended while the question was being written: asyncio logged the error
    that nobody had read."""
    async def main() -> None:
        store = make_dying_store(tmp_path, 1, "pass")
        num_failed = 0

        async def write_slowly(process: Process, line: str) -> None:
            nonlocal num_failed
            if '"op"' in line and not num_failed:
                num_failed += 1
                assert store._reader_task is not None
                await asyncio.wait([store._reader_task])
                raise ConnectionResetError
            await write_line(process, line)

        monkeypatch.setattr(store_client, "write_line", write_slowly)
        assert (await store.send_request(op="x"))["op"] == "x"
        assert num_failed == 1
        await store.close()
    uvloop.run(main())


def test_process_that_cannot_be_started_fails_the_request() -> None:
    async def main() -> None:
        with pytest.raises(AdapterLoadFailed, match=r"does not start: .*; try again"):
            await AdapterStoreClient(["/nowhere"]).send_request(op="x")
    uvloop.run(main())
@pytest.mark.slow
def test_stopped_process_is_replaced_and_its_requests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(store_client, "MAX_SILENT_SECONDS", 0.5)

    async def scenario(store: AdapterStoreClient) -> None:
        assert (await store.send_request(op="x"))["op"] == "x"
        assert store._process is not None
        os.kill(store._process.pid, signal.SIGSTOP)
        with pytest.raises(AdapterLoadFailed, match="did not respond for 1 seconds and was ended; try again") as error:
            await store.send_request(op="x")
        assert error.value.is_temporary
        assert (await store.send_request(op="x"))["op"] == "x"
    run_scenario(scenario)


@pytest.mark.slow
def test_process_that_responds_is_not_replaced_while_a_request_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(store_client, "MAX_SILENT_SECONDS", 1.0)
    monkeypatch.setattr(store_client, "MAX_ANSWER_SECONDS", 2.0)

    async def scenario(store: AdapterStoreClient) -> None:
        with pytest.raises(AdapterLoadFailed, match="did not answer within 2 seconds; try again"):
            await store.send_request(op="hold")
        assert (await store.send_request(op="x"))["op"] == "x"
        assert store._num_responses > 4
    run_scenario(scenario)


def test_no_process_is_started_before_the_first_request() -> None:
    async def scenario(store: AdapterStoreClient) -> None:
        assert store._process is None
    run_scenario(scenario)


@pytest.mark.slow
def test_store_process_runs_on_uvloop() -> None:
    """uvloop accepts fewer options for a subprocess than asyncio's own loop."""
    async def main() -> None:
        store = AdapterStoreClient([sys.executable, "-c", STORE_PROCESS_SCRIPT], "secret")
        assert (await store.send_request(op="fetch"))["token"] == "secret"
        await store.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
