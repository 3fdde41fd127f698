"""Event stream between the engine and one client."""

import asyncio

import pytest
from support.expected_streams import lived

from router.engine.stream import FailedEvent, FinishedEvent, PromptEvent, Stream, TokenEvent, ToldEvent, TopToken
from router.errors import Cancelled, GenerationFailed
from router.request import FinishReason, Request
from router.scheduler.plan import Labelling

TOKEN = TokenEvent(104, "h", -1.0, special=False)
END = FinishedEvent(FinishReason.LENGTH, "h", 1, lived())
LIMIT = 1000


class Calls:
    """Stream with the names of the callbacks that it called."""

    def __init__(self, limit=LIMIT):
        self.names = []
        note = self.names.append
        self.stream = Stream(Request("0", (1,), 1), limit, lambda: note("full"), lambda: note("drained"),
                             lambda: note("left"))


def run(scenario):
    calls = Calls()
    asyncio.run(scenario(calls.stream))
    return calls.names


def test_all_that_waits_is_taken_at_once():
    async def scenario(stream):
        stream.put(TOKEN)
        stream.put(END)
        assert await stream.events() == [TOKEN, END]
    assert run(scenario) == []


def test_a_burst_wakes_its_reader_once():
    async def scenario(stream):
        reader = asyncio.create_task(stream.events())
        await asyncio.sleep(0)
        for event in (TOKEN, TOKEN, END):
            stream.put(event)
        assert await reader == [TOKEN, TOKEN, END]
    run(scenario)


def test_a_listener_is_called_once_for_all_that_it_has_not_taken():
    async def scenario(stream):
        calls = []
        stream.listen(lambda: calls.append(stream.size))
        stream.put(TOKEN)
        stream.put(TOKEN)
        assert len(calls) == 1
        assert stream.take() == [TOKEN, TOKEN]
        stream.put(END)
        assert len(calls) == 2
    run(scenario)


def test_putting_to_a_reader_that_was_cancelled_is_no_error():
    async def scenario(stream):
        reader = asyncio.create_task(stream.events())
        await asyncio.sleep(0)
        reader.cancel()
        stream.put(TOKEN)
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await stream.events() == [TOKEN]
    run(scenario)


def test_leaving_before_the_end_is_told_once():
    async def scenario(stream):
        stream.put(TOKEN)
        stream.close()
        stream.close()
        stream.put(END)
    assert run(scenario) == ["left"]


@pytest.mark.parametrize("end", [END, FailedEvent(GenerationFailed("broken"))])
def test_closing_after_the_end_is_no_leaving(end):
    async def scenario(stream):
        stream.put(end)
        stream.close()
    assert run(scenario) == []


def test_nothing_comes_after_the_end():
    async def scenario(stream):
        stream.put(END)
        with pytest.raises(AssertionError):
            stream.put(TOKEN)
    run(scenario)


def test_a_slow_reader_is_told_once_and_again_after_it_came_back():
    async def scenario(stream):
        for _ in range(2):
            for _ in range(20):
                stream.put(TOKEN)
            await stream.events()
    assert run(scenario) == ["full", "drained"] * 2


def test_a_slow_reader_is_no_matter_after_the_end():
    async def scenario(stream):
        for _ in range(20):
            stream.put(TOKEN)
        stream.put(END)
        await stream.events()
    assert run(scenario) == ["full"]


def test_size_counts_what_waits():
    async def scenario(stream):
        stream.put(TOKEN)
        plain = stream.size
        stream.put(TokenEvent(104, "h", -1.0, False, (TopToken(104, "h", -1.0, False),) * 2))
        stream.put(PromptEvent(1, (-1.0, -2.0)))
        assert stream.size > 3 * plain
        await stream.events()
        assert stream.size == 0
    run(scenario)


def test_being_cancelled_cuts_a_reader_that_may_be_stuck_in_a_write():
    async def scenario(stream):
        cuts = []
        stream.cut = lambda: cuts.append("cut")
        stream.put(FailedEvent(Cancelled("too slow")))
        assert cuts == ["cut"]
    assert run(scenario) == []


def test_other_failures_are_left_to_the_reader():
    async def scenario(stream):
        stream.cut = pytest.fail
        stream.put(FailedEvent(GenerationFailed("broken")))
    run(scenario)


def test_what_a_stream_ended_with_is_known_afterwards():
    async def scenario(stream):
        stream.put(TOKEN)
        assert stream.failure is None
        failure = GenerationFailed("broken")
        stream.put(FailedEvent(failure))
        assert stream.failure is failure
    run(scenario)


@pytest.mark.parametrize("told", [[0.5, 1.0], Labelling([1, 2], [0.5, 0.25])])
def test_what_is_told_of_a_whole_text_is_the_end(told):
    stream, left = Stream(Request("a", (1,), 0), 1000, int, int, lambda: left.append(True)), []
    stream.put(ToldEvent(told, lived()))
    assert stream.size == 32
    stream.close()
    assert not left
