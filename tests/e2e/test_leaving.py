"""Tests of disconnects: a request's blocks are free with the next message sent, at most two steps later."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass

import pytest
from support.scheduling.method_overrides import override_methods
from support.servers.expected_streams import ReceivedStream
from support.servers.in_process_server import make_generate_body, play_scenario

from router.scheduler.sequence import SequenceState
from shard.simulator.worker import SimulatedWorker

# clients: of the engine, of /generate_stream, of /generate
NUM_ENGINE_CLIENTS, NUM_STREAM_CLIENTS, NUM_GENERATE_CLIENTS = 330, 60, 60
NUM_LEAVING_IN_PREFILL, NUM_LEAVING_IN_LAST_STEP = 10, 40  # further clients of the engine that leave in this state
# the tokens of the client that never leaves, and the step before which all others arrive
STAYING_CLIENT_TOKENS, LAST_ARRIVAL_STEP = 450, 300
UNLIMITED_STEPS = 10**9
LONG_PROMPT_TOKENS = 1500  # a prompt of this length takes several steps


class StepRecordingWorker(SimulatedWorker):
    """Worker that records the sequences present in each step."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sequences_by_step = []

    def _run_step(self, *args):
        self.sequences_by_step.append(set(self.shard_state.sequences))
        return super()._run_step(*args)


@dataclass
class LeavingClient:
    arrival_step: int
    steps_until_leaving: int
    prompt: str
    max_new_tokens: int
    state: str = ""  # the state in which it leaves, however long that takes; any state if empty

    @classmethod
    def make_random(cls, rng, state=""):
        steps_until_leaving = UNLIMITED_STEPS if state else rng.choice((0, rng.randrange(20), rng.randrange(60)))
        prompt = LONG_PROMPT_TOKENS if state == "prefill" else rng.randrange(1, 400)
        return cls(rng.randrange(LAST_ARRIVAL_STEP), steps_until_leaving, "x" * prompt, rng.randrange(1, 40), state)

    async def arrive_and_leave(self, weft, send_request):
        """Run `send_request` until it ends or `steps_until_leaving` steps have passed."""
        await weft.shards.wait_for_num_steps(self.arrival_step)
        request_task = asyncio.create_task(send_request(weft, self))
        leave_timer = asyncio.create_task(
            weft.shards.wait_for_num_steps(weft.shards.num_steps + self.steps_until_leaving))
        await asyncio.wait([request_task, leave_timer], return_when=asyncio.FIRST_COMPLETED)
        for task in (request_task, leave_timer):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def submit_to_engine(weft, client):
    stream = weft.submit(client.prompt, client.max_new_tokens)
    try:
        (await ReceivedStream.from_stream(stream)).check_output(weft.model)
    finally:
        stream.close()


async def submit_until_state(weft, client):
    stream = weft.submit(client.prompt, client.max_new_tokens)
    sequence = next(one for one in weft.scheduler.sequences if one.request is stream.request)
    try:
        while get_sequence_state(sequence) not in (client.state, "over"):
            await weft.shards.wait_for_num_steps(weft.shards.num_steps + 1)
    finally:
        stream.close()


async def stream_over_http(weft, client):
    *_, last = await weft.generate_stream(client.prompt, client.max_new_tokens)
    assert last["generated_text"] == weft.compute_expected_text(client.prompt, client.max_new_tokens)


async def generate_over_http(weft, client):
    body = make_generate_body(client.prompt, client.max_new_tokens)
    async with weft.http_session.post("/generate", json=body) as answer:
        text = (await answer.json())["generated_text"]
        assert text == weft.compute_expected_text(client.prompt, client.max_new_tokens)


def get_sequence_state(sequence):
    if sequence is None or sequence.state is SequenceState.FINISHED:
        return "over"
    if sequence.state is SequenceState.WAITING:
        return "waiting"
    if not sequence.is_ready_to_decode:
        return "prefill"
    num_tokens_left = sequence.request.max_length - sequence.length - sequence.num_outputs_in_flight
    return "decode" if num_tokens_left > 0 else "last step"


class CancellationRecorder:
    """Record of cancelled sequences: their states, and the number of steps sent before each cancellation."""

    def __init__(self, weft):
        self.step_by_sequence, self.states_at_cancellation = {}, set()
        self._weft, self._cancel = weft, weft.scheduler.cancel
        override_methods(weft.scheduler, cancel=self._record_cancellation)

    def _record_cancellation(self, sequence_id, now):
        running, sequence = self._weft.scheduler.running, self._weft.scheduler.sequences.get(sequence_id)
        self.step_by_sequence[sequence_id] = self._weft.shards.num_steps
        self.states_at_cancellation.add(get_sequence_state(sequence))
        free = running.block_pool.num_free + running.block_pool.count_freed_by([sequence.blocks] if sequence else [])
        self._cancel(sequence_id, now)
        assert running.block_pool.num_free == free
        assert len(self._weft.engine._plans_in_flight) <= 2
        return []

    def check_absent_afterwards(self, sequences_by_step):
        """Check that no sequence is present in a step sent after its cancellation."""
        for number, steps in self.step_by_sequence.items():
            assert not any(number in there for there in sequences_by_step[steps:])


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "look_ahead", "http"), [
    ("mixed", 2, True), ("pause", 2, True), ("mixed", 1, False)])
def test_clients_can_disconnect_at_random_moments(tmp_path, policy, look_ahead, http):
    async def scenario(weft):
        rng, cancellations = random.Random(look_ahead), CancellationRecorder(weft)
        staying_client = asyncio.create_task(ReceivedStream.from_stream(weft.submit("stays", STAYING_CLIENT_TOKENS)))
        leaving_clients = [(submit_to_engine, "")] * NUM_ENGINE_CLIENTS
        leaving_clients += [(submit_until_state, "prefill")] * NUM_LEAVING_IN_PREFILL
        leaving_clients += [(submit_until_state, "last step")] * NUM_LEAVING_IN_LAST_STEP
        leaving_clients += [(stream_over_http if http else submit_to_engine, "")] * NUM_STREAM_CLIENTS
        leaving_clients += [(generate_over_http if http else submit_to_engine, "")] * NUM_GENERATE_CLIENTS
        await asyncio.gather(*(LeavingClient.make_random(rng, state).arrive_and_leave(weft, send_request)
                               for send_request, state in leaving_clients))
        (await staying_client).check_output(weft.model)
        await weft.check_idle()
        cancellations.check_absent_afterwards(weft.ranks[0].worker.sequences_by_step)
        assert cancellations.states_at_cancellation >= {"waiting", "prefill", "decode", "last step"}
        assert not weft.replacement_reasons
    play_scenario(scenario, tmp_path, http=http, worker=StepRecordingWorker, prefill_policy=policy,
                  look_ahead=look_ahead, num_blocks=800, max_concurrent_requests=501, max_batch_size=32,
                  max_batch_prefill_tokens=256)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_closing_the_connection_cancels_the_request(tmp_path, path, steps):
    async def scenario(weft):
        cancelled = weft.watch_scheduler_calls("cancel")
        posting = asyncio.create_task(weft.http_session.post(path, json=make_generate_body("a loom", 1000)))
        await weft.gate.wait_for_step()
        weft.gate.release_steps(steps)
        await weft.shards.wait_for_num_steps(steps + 1)
        posting.cancel()
        with suppress(asyncio.CancelledError):
            (await posting).close()
        await cancelled.get()
        weft.gate.release_all()
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, gated=True)


def test_failure_of_one_best_of_choice_cancels_the_others(tmp_path):
    async def scenario(weft):
        cancelled = weft.watch_scheduler_calls("cancel")
        answer = await weft.generate("a loom", 1000, best_of=2, do_sample=True)
        assert answer.status == 424
        await cancelled.get()
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, faults="fail_sequence@decode:4:1")


def test_two_requests_can_share_one_connection(tmp_path):
    async def scenario(weft):
        for length in (3, 5):
            *_, last = await weft.generate_stream("a loom", length)
            assert last["index"] == length
        assert len(weft.server._runner.server.connections) == 1
    play_scenario(scenario, tmp_path, http=True)
