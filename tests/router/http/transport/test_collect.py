"""Rendering of events as TGI's JSON."""

import asyncio
import json
import math

import pytest
from support.expected_streams import lived

from router.engine.stream import FailedEvent, FinishedEvent, PromptEvent, Stream, TokenEvent, TopToken
from router.errors import Cancelled, GenerationFailed
from router.http.transport.collect import Collector, Streaming, number, token_json
from router.request import FinishReason, Request
from router.text.tokenizer import byte_tokenizer
from router.validation.validator import Choice

CHOICE = Choice(Request("0", (104, 105), 5, prompt_logprobs=True), seed=7)
TOKEN = TokenEvent(104, "h", -0.5, False)
END = FinishedEvent(FinishReason.END_TOKEN, "hé", 1, lived())


def rendered(*events, details=True, prefix=""):
    text = Streaming(CHOICE, details, prefix).burst(list(events)).decode()
    return [json.loads(line.removeprefix("data: ")) for line in text.removesuffix("\n\n").split("\n\n")]


def collected(*events):
    async def scenario():
        stream = Stream(CHOICE.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        for event in events:
            stream.put(event)
        return await Collector(stream, CHOICE).answer()
    return asyncio.run(scenario())


@pytest.mark.parametrize(("value", "text"), [
    (-0.5, "-0.5"), (0.0, "0"), (-1.2345677614212036, "-1.23456776"), (-1e-7, "-1e-07"), (None, "null"),
    (math.nan, "null"), (-math.inf, "null")])
def test_numbers_are_json(value, text):
    assert number(value) == text
    json.loads(text)


@pytest.mark.parametrize("text", ["", '"\\', "\n\r\0", "\u2028\x85", "é😀"])
def test_a_token_is_one_line_of_ascii_whatever_its_text(text):
    line = token_json(TokenEvent(1, text, -0.5, True))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"id": 1, "text": text, "logprob": -0.5, "special": True}


def test_tokens_are_counted_from_one_across_bursts():
    streaming = Streaming(CHOICE, False, "")
    bursts = [streaming.burst([TOKEN]), streaming.burst([TOKEN, TOKEN])]
    assert [burst.count(b"data: ") for burst in bursts] == [1, 2]
    assert b'{"index":3,' in bursts[1]


def test_an_event_has_tgis_fields_in_tgis_order():
    assert Streaming(CHOICE, False, "").burst([TOKEN]) == (
        b'data: {"index":1,"token":{"id":104,"text":"h","logprob":-0.5,"special":false},'
        b'"generated_text":null,"details":null}\n\n')


def test_the_last_token_carries_the_end():
    first, last = rendered(TOKEN, TOKEN, END)
    assert (first["generated_text"], last["generated_text"]) == (None, "hé")
    assert last["details"] == {"finish_reason": "eos_token", "generated_tokens": 1, "seed": 7, "input_length": 2}


def test_an_end_without_a_last_token_comes_with_an_empty_special_one():
    streaming = Streaming(CHOICE, True, "")
    streaming.burst([TOKEN])
    event = json.loads(streaming.burst([FinishedEvent(FinishReason.TIMEOUT, "hé", 1, lived())]).removeprefix(b"data: "))
    assert (event["index"], event["generated_text"], event["details"]["finish_reason"]) == (2, "hé", "timeout")
    assert event["token"] == {"id": 0, "text": "", "logprob": 0, "special": True}
    assert streaming.ended


def test_details_come_only_when_asked_for():
    assert rendered(TOKEN, END, details=False)[0]["details"] is None


def test_the_prompt_may_stand_before_the_text():
    assert rendered(TOKEN, END, prefix="hi ")[0]["generated_text"] == "hi hé"


def test_top_tokens_are_told_where_there_are_some():
    token = TokenEvent(104, "h", -0.5, False, (TopToken(104, "h", -0.5, False), TopToken(105, "i", -math.inf, False)))
    [event] = rendered(token)
    assert [top["id"] for top in event["top_tokens"]] == [104, 105]
    assert event["top_tokens"][1]["logprob"] is None
    assert "top_tokens" not in rendered(TOKEN)[0]


def test_a_failure_is_the_last_event():
    assert rendered(TOKEN, FailedEvent(GenerationFailed("broken")))[1] == {
        "error": "Request failed during generation: broken", "error_type": "generation"}


def test_a_cancelled_request_has_no_last_event():
    with pytest.raises(Cancelled):
        rendered(TOKEN, FailedEvent(Cancelled("too slow")))


def test_an_answer_is_all_that_was_put():
    answer = collected(PromptEvent(1, (-2.0,)), TOKEN, END)
    assert (answer.tokens, answer.prompt_logprobs, answer.end) == ([TOKEN], [None, -2.0], END)
    assert answer.mean_logprob == -0.5


def test_tokens_wake_nobody_before_the_end():
    async def scenario():
        stream = Stream(CHOICE.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        answering = asyncio.create_task(Collector(stream, CHOICE).answer())
        await asyncio.sleep(0)
        stream.put(TOKEN)
        assert stream.size == 0
        stream.put(TOKEN)
        stream.put(END)
        assert (await answering).tokens == [TOKEN, TOKEN]
    asyncio.run(scenario())


def test_an_end_for_somebody_who_left_is_no_error():
    async def scenario():
        stream = Stream(CHOICE.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        answering = asyncio.create_task(Collector(stream, CHOICE).answer())
        await asyncio.sleep(0)
        answering.cancel()
        stream.put(END)
        await asyncio.wait([answering])
        assert answering.cancelled()
    asyncio.run(scenario())


def test_a_failed_answer_is_raised():
    with pytest.raises(GenerationFailed):
        collected(TOKEN, FailedEvent(GenerationFailed("broken")))


def test_prompt_tokens_are_told_with_their_logprobs():
    details = json.loads(collected(PromptEvent(1, (-2.0,)), TOKEN, END).details_json(byte_tokenizer(), [], ""))
    assert details["prefill"] == [{"id": 104, "text": "h", "logprob": None}, {"id": 105, "text": "i", "logprob": -2.0}]


def test_details_have_tgis_fields_in_tgis_order():
    answer = collected(TokenEvent(104, "h", -0.5, False, (TopToken(104, "h", -0.5, False),)), END)
    details = json.loads(answer.details_json(byte_tokenizer(), [answer], "hi "))
    assert list(details) == ["finish_reason", "generated_tokens", "seed", "prefill", "tokens", "best_of_sequences",
                             "top_tokens"]
    assert list(details["best_of_sequences"][0]) == ["generated_text", "finish_reason", "generated_tokens", "seed",
                                                     "prefill", "tokens", "top_tokens"]
    assert details["best_of_sequences"][0]["generated_text"] == "hi hé"
