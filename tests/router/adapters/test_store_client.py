"""Tests of router/adapters/store_client.py with a scripted process, on the router's event loop."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from router.adapters.store_client import Store
from router.errors import AdapterFailed

# Sends `op` and the token back. `hold` is answered after the next one, `die` ends the process, `odd` prints no JSON.
SCRIPT = """
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
    for each in [heard, *held]:
        print("what?" if each["op"] == "odd" else json.dumps({"id": each["id"], "op": each["op"], "token": token}),
              flush=True)
    held.clear()
"""


def play(story: Callable[[Store], Awaitable[Any]]) -> None:
    async def told() -> None:
        store = Store([sys.executable, "-c", SCRIPT], "secret")
        await story(store)
        await store.close()
    uvloop.run(told())


@pytest.mark.slow
def test_answers_come_to_who_asked_in_whatever_order() -> None:
    async def story(store: Store) -> None:
        later = asyncio.create_task(store.ask(op="hold"))
        await asyncio.sleep(0)
        sooner = await store.ask(op="x")
        assert (sooner["op"], sooner["token"], (await later)["op"]) == ("x", "secret", "hold")
    play(story)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["die", "odd"])
def test_a_process_that_ends_fails_who_waits_and_the_next_question_starts_another(end: str) -> None:
    async def story(store: Store) -> None:
        waiting = asyncio.create_task(store.ask(op="hold"))
        await asyncio.sleep(0)
        for question in (store.ask(op=end), waiting):
            with pytest.raises(AdapterFailed, match="ended; try again"):
                await question
        assert (await store.ask(op="x"))["op"] == "x"
    play(story)


def test_without_a_question_there_is_no_process() -> None:
    async def story(store: Store) -> None:
        assert store._process is None
    play(story)


@pytest.mark.slow
def test_it_runs_on_the_loop_that_the_router_runs_on() -> None:
    """uvloop accepts fewer options for a subprocess than asyncio's own loop."""
    async def told() -> None:
        store = Store([sys.executable, "-c", SCRIPT], "secret")
        assert (await store.ask(op="fetch"))["token"] == "secret"
        await store.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(told())
