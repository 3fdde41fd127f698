"""Tests of router/http/transport/outputs.py."""

import asyncio
import json
import math

import pytest
from support.servers.expected_streams import make_finished_timeline

from router.engine.stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, RequestStream, TokenEvent
from router.errors import GenerationFailed
from router.http.transport.outputs import OutputCollector, float32_json
from router.request import FinishReason, Request
from router.validation.validator import ValidatedRequest

VALIDATED_REQUEST = ValidatedRequest(Request("0", (104, 105), 5, prompt_logprobs=True), seed=7)
TOKEN_EVENT = TokenEvent(104, "h", -0.5, False)
FINAL_EVENT = FinishedEvent(FinishReason.END_TOKEN, "hé", 1, make_finished_timeline())


def collect_output(*events):
    async def scenario():
        stream = RequestStream(VALIDATED_REQUEST.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        for event in events:
            stream.put(event)
        return await OutputCollector(stream, VALIDATED_REQUEST).wait_for_output()
    return asyncio.run(scenario())


@pytest.mark.parametrize(("value", "text"), [
    (-0.5, "-0.5"), (0.0, "0"), (-1.2345677614212036, "-1.23456776"), (-1e-7, "-1e-07"), (None, "null"),
    (math.nan, "null"), (-math.inf, "null")])
def test_float32_numbers_are_rendered_as_valid_json(value, text):
    assert float32_json(value) == text
    json.loads(text)


def test_output_contains_all_events():
    answer = collect_output(PromptLogprobsEvent(1, (-2.0,)), TOKEN_EVENT, FINAL_EVENT)
    assert (answer.tokens, answer.prompt_logprobs, answer.final_event) == ([TOKEN_EVENT], [None, -2.0], FINAL_EVENT)
    assert answer.mean_logprob == -0.5


def test_tokens_do_not_wake_the_waiting_task_before_the_end():
    async def scenario():
        stream = RequestStream(VALIDATED_REQUEST.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        task = asyncio.create_task(OutputCollector(stream, VALIDATED_REQUEST).wait_for_output())
        await asyncio.sleep(0)
        stream.put(TOKEN_EVENT)
        assert stream.num_bytes == 0
        stream.put(TOKEN_EVENT)
        stream.put(FINAL_EVENT)
        assert (await task).tokens == [TOKEN_EVENT, TOKEN_EVENT]
    asyncio.run(scenario())


def test_end_after_cancellation_is_no_error():
    async def scenario():
        stream = RequestStream(VALIDATED_REQUEST.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        task = asyncio.create_task(OutputCollector(stream, VALIDATED_REQUEST).wait_for_output())
        await asyncio.sleep(0)
        task.cancel()
        stream.put(FINAL_EVENT)
        await asyncio.wait([task])
        assert task.cancelled()
    asyncio.run(scenario())


def test_failure_is_raised_to_the_caller():
    with pytest.raises(GenerationFailed):
        collect_output(TOKEN_EVENT, FailedEvent(GenerationFailed("broken")))
