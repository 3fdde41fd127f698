"""Tests of disconnects: a request's blocks are free with the next message sent, at most two steps later."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass

import pytest
from support.expected_streams import Heard
from support.in_process_server import body, play

from router.scheduler.sequence import State
from shard.simulator.worker import SimulatedWorker

STREAMS, STREAMING, PLAIN = 330, 60, 60  # clients: of the engine, of /generate_stream, of /generate
IN_PREFILL, IN_LAST_STEP = 10, 40  # further clients of the engine that leave in this state
LENGTH, LAST_ARRIVAL = 450, 300  # in steps: the stay of the client that never leaves, and the last arrival
FOREVER = 10**9  # steps
LONG = 1500  # tokens of a prompt that takes some steps


class Noting(SimulatedWorker):
    """Worker that records the sequences present in each step."""

    def __init__(self, *args):
        super().__init__(*args)
        self.present = []

    def _run(self, *args):
        self.present.append(set(self.ledger.sequences))
        return super()._run(*args)


@dataclass
class Leaver:
    arrival: int
    patience: int
    prompt: str
    length: int
    state: str = ""  # the state in which it leaves, however long that takes; any state if empty

    @classmethod
    def random(cls, dice, state=""):
        patience = FOREVER if state else dice.choice((0, dice.randrange(20), dice.randrange(60)))
        prompt = LONG if state == "prefill" else dice.randrange(1, 400)
        return cls(dice.randrange(LAST_ARRIVAL), patience, "x" * prompt, dice.randrange(1, 40), state)

    async def come_and_go(self, weft, visit):
        """Run `visit` until it ends or `patience` steps have passed."""
        await weft.shards.reach(self.arrival)
        visiting = asyncio.create_task(visit(weft, self))
        leaving = asyncio.create_task(weft.shards.reach(weft.shards.num_steps + self.patience))
        await asyncio.wait([visiting, leaving], return_when=asyncio.FIRST_COMPLETED)
        for task in (visiting, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def visit_engine(weft, leaver):
    stream = weft.submit(leaver.prompt, leaver.length)
    try:
        (await Heard.all_of(stream)).check(weft.model)
    finally:
        stream.close()


async def visit_until_its_state(weft, leaver):
    stream = weft.submit(leaver.prompt, leaver.length)
    sequence = next(one for one in weft.core.sequences if one.request is stream.request)
    try:
        while where(sequence) not in (leaver.state, "over"):
            await weft.shards.reach(weft.shards.num_steps + 1)
    finally:
        stream.close()


async def visit_stream(weft, leaver):
    *_, last = await weft.stream(leaver.prompt, leaver.length)
    assert last["generated_text"] == weft.expected_text(leaver.prompt, leaver.length)


async def visit_plain(weft, leaver):
    async with weft.http.post("/generate", json=body(leaver.prompt, leaver.length)) as answer:
        text = (await answer.json())["generated_text"]
        assert text == weft.expected_text(leaver.prompt, leaver.length)


def where(sequence):
    if sequence is None or sequence.state is State.OVER:
        return "over"
    if sequence.state is State.WAITING:
        return "waiting"
    if not sequence.is_ready:
        return "prefill"
    return "decode" if sequence.tokens_left > 0 else "last step"


class Departures:
    """Record of cancelled sequences: their states, and the number of steps sent before each cancellation."""

    def __init__(self, weft):
        self.steps, self.states = {}, set()
        self._weft, self._cancel = weft, weft.core.cancel
        weft.core.cancel = self._leave

    def _leave(self, number, now):
        running, sequence = self._weft.core.running, self._weft.core.sequences.get(number)
        self.steps[number] = self._weft.shards.num_steps
        self.states.add(where(sequence))
        free = running.blocks.num_free + running.blocks.num_freed([sequence.blocks] if sequence else [])
        self._cancel(number, now)
        assert running.blocks.num_free == free
        assert len(self._weft.engine._under_way) <= 2
        return []

    def check(self, present):
        """Check that no sequence is present in a step sent after its cancellation."""
        for number, steps in self.steps.items():
            assert not any(number in there for there in present[steps:])


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "look_ahead", "http"), [
    ("mixed", 2, True), ("pause", 2, True), ("mixed", 1, False)])
def test_500_clients_leave_at_random_moments(tmp_path, policy, look_ahead, http):
    async def story(weft):
        dice, departures = random.Random(look_ahead), Departures(weft)
        stays = asyncio.create_task(Heard.all_of(weft.submit("stays", LENGTH)))
        leavers = [(visit_engine, "")] * STREAMS
        leavers += [(visit_until_its_state, "prefill")] * IN_PREFILL
        leavers += [(visit_until_its_state, "last step")] * IN_LAST_STEP
        leavers += [(visit_stream if http else visit_engine, "")] * STREAMING
        leavers += [(visit_plain if http else visit_engine, "")] * PLAIN
        await asyncio.gather(*(Leaver.random(dice, state).come_and_go(weft, visit) for visit, state in leavers))
        (await stays).check(weft.model)
        await weft.check_idle()
        departures.check(weft.ranks[0].worker.present)
        assert departures.states >= {"waiting", "prefill", "decode", "last step"}
        assert not weft.broken
    play(story, tmp_path, http=http, worker=Noting, prefill_policy=policy, look_ahead=look_ahead, num_blocks=800,
         max_concurrent_requests=501, max_batch_size=32, max_batch_prefill_tokens=256)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_closing_the_connection_is_leaving(tmp_path, path, steps):
    async def story(weft):
        left = weft.watch("cancel")
        posting = asyncio.create_task(weft.http.post(path, json=body("a loom", 1000)))
        await weft.gate.arrival()
        weft.gate.let(steps)
        await weft.shards.reach(steps + 1)
        posting.cancel()
        with suppress(asyncio.CancelledError):
            (await posting).close()
        await left.get()
        weft.gate.open()
        await weft.check_idle()
    play(story, tmp_path, http=True, gated=True)


def test_when_one_of_several_choices_fails_the_others_are_given_up(tmp_path):
    async def story(weft):
        left = weft.watch("cancel")
        answer = await weft.generate("a loom", 1000, best_of=2, do_sample=True)
        assert answer.status == 424
        await left.get()
        await weft.check_idle()
    play(story, tmp_path, http=True, faults="fail_sequence@decode:4:1")


def test_two_requests_on_one_connection_are_two_clients(tmp_path):
    async def story(weft):
        for length in (3, 5):
            *_, last = await weft.stream("a loom", length)
            assert last["index"] == length
        assert len(weft.server._runner.server.connections) == 1
    play(story, tmp_path, http=True)
