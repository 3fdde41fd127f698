"""Event stream between the engine and one client."""

import asyncio

import pytest
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import (
    FailedEvent,
    FinishedEvent,
    PoolingEvent,
    PromptLogprobsEvent,
    RequestStream,
    TokenEvent,
    TopToken,
)
from router.errors import Cancelled, GenerationFailed
from router.request import FinishReason, Request, TokenClassificationOutput

TOKEN_EVENT = TokenEvent(104, "h", -1.0, special=False)
FINAL_EVENT = FinishedEvent(FinishReason.LENGTH, "h", 1, make_finished_timeline())
MAX_BUFFER_BYTES = 1000


class StreamWithCallLog:
    """Stream with the names of the callbacks that it called."""

    def __init__(self, max_bytes=MAX_BUFFER_BYTES):
        self.callback_names = []
        record_call = self.callback_names.append
        self.stream = RequestStream(Request("0", (1,), 1), max_bytes, lambda: record_call("full"),
                                    lambda: record_call("drained"), lambda: record_call("left"))


def run_scenario(scenario):
    calls = StreamWithCallLog()
    asyncio.run(scenario(calls.stream))
    return calls.callback_names


def test_all_waiting_events_are_taken_at_once():
    async def scenario(stream):
        stream.put(TOKEN_EVENT)
        stream.put(FINAL_EVENT)
        assert await stream.wait_for_events() == [TOKEN_EVENT, FINAL_EVENT]
    assert run_scenario(scenario) == []


def test_burst_of_events_wakes_the_reader_once():
    async def scenario(stream):
        reader = asyncio.create_task(stream.wait_for_events())
        await asyncio.sleep(0)
        for event in (TOKEN_EVENT, TOKEN_EVENT, FINAL_EVENT):
            stream.put(event)
        assert await reader == [TOKEN_EVENT, TOKEN_EVENT, FINAL_EVENT]
    run_scenario(scenario)


def test_logprobs_of_the_prompt_can_be_taken_before_other_events():
    async def scenario(stream):
        reader = asyncio.create_task(stream.take_prompt_logprobs())
        pieces = [PromptLogprobsEvent(start, (-1.0,)) for start in range(1, 4)]
        for burst in (pieces[:1], [*pieces[1:], TOKEN_EVENT]):
            for event in burst:
                stream.put(event)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        stream.put(FINAL_EVENT)
        assert await reader == pieces
        assert stream.take_events() == [TOKEN_EVENT, FINAL_EVENT]
    run_scenario(scenario)


def test_listener_is_called_once_until_its_events_are_taken():
    async def scenario(stream):
        calls = []
        stream.on_event = lambda: calls.append(stream.num_bytes)
        stream.put(TOKEN_EVENT)
        stream.put(TOKEN_EVENT)
        assert len(calls) == 1
        assert stream.take_events() == [TOKEN_EVENT, TOKEN_EVENT]
        stream.put(FINAL_EVENT)
        assert len(calls) == 2
    run_scenario(scenario)


def test_putting_after_the_reader_was_cancelled_is_no_error():
    async def scenario(stream):
        reader = asyncio.create_task(stream.wait_for_events())
        await asyncio.sleep(0)
        reader.cancel()
        stream.put(TOKEN_EVENT)
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await stream.wait_for_events() == [TOKEN_EVENT]
    run_scenario(scenario)


def test_closing_before_the_end_is_reported_once():
    async def scenario(stream):
        stream.put(TOKEN_EVENT)
        stream.close()
        stream.close()
        stream.put(FINAL_EVENT)
    assert run_scenario(scenario) == ["left"]


@pytest.mark.parametrize("end", [FINAL_EVENT, FailedEvent(GenerationFailed("broken"))])
def test_closing_after_the_end_reports_nothing(end):
    async def scenario(stream):
        stream.put(end)
        stream.close()
    assert run_scenario(scenario) == []


def test_no_event_may_follow_the_final_event():
    async def scenario(stream):
        stream.put(FINAL_EVENT)
        with pytest.raises(RuntimeError, match="after the last one"):
            stream.put(TOKEN_EVENT)
    run_scenario(scenario)


def test_full_and_drained_are_reported_once_each_time():
    async def scenario(stream):
        for _ in range(2):
            for _ in range(20):
                stream.put(TOKEN_EVENT)
            await stream.wait_for_events()
    assert run_scenario(scenario) == ["full", "drained"] * 2


def test_drained_is_not_reported_after_the_end():
    async def scenario(stream):
        for _ in range(20):
            stream.put(TOKEN_EVENT)
        stream.put(FINAL_EVENT)
        await stream.wait_for_events()
    assert run_scenario(scenario) == ["full"]


def test_size_counts_waiting_events():
    async def scenario(stream):
        stream.put(TOKEN_EVENT)
        plain = stream.num_bytes
        stream.put(TokenEvent(104, "h", -1.0, False, (TopToken(104, "h", -1.0, False),) * 2))
        stream.put(PromptLogprobsEvent(1, (-1.0, -2.0)))
        assert stream.num_bytes > 3 * plain
        await stream.wait_for_events()
        assert stream.num_bytes == 0
    run_scenario(scenario)


def test_cancellation_aborts_a_reader_that_may_be_stuck_writing():
    async def scenario(stream):
        cuts = []
        stream.abort_connection = lambda: cuts.append("cut")
        stream.put(FailedEvent(Cancelled("too slow")))
        assert cuts == ["cut"]
    assert run_scenario(scenario) == []


def test_other_failures_do_not_abort_the_reader():
    async def scenario(stream):
        stream.abort_connection = pytest.fail
        stream.put(FailedEvent(GenerationFailed("broken")))
    run_scenario(scenario)


def test_stream_remembers_its_failure():
    async def scenario(stream):
        stream.put(TOKEN_EVENT)
        assert stream.failure is None
        failure = GenerationFailed("broken")
        stream.put(FailedEvent(failure))
        assert stream.failure is failure
    run_scenario(scenario)


@pytest.mark.parametrize("output", [[0.5, 1.0], TokenClassificationOutput([1, 2], [0.5, 0.25])])
def test_pooling_output_ends_the_stream(output):
    stream, left = RequestStream(Request("a", (1,), 0), 1000, int, int, lambda: left.append(True)), []
    stream.put(PoolingEvent(output, make_finished_timeline()))
    assert stream.num_bytes == 32
    stream.close()
    assert not left
