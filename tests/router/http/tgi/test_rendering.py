"""Rendering of events as TGI's JSON."""

import json
import math

import pytest
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent, TopToken
from router.errors import Cancelled, GenerationFailed
from router.http.tgi.rendering import GenerateStreamRenderer, details_json, float32_json, token_json
from router.http.transport.services import GenerationOutput
from router.request import FinishReason, Request
from router.text.tokenizer import create_byte_tokenizer
from router.validation.validator import ValidatedRequest

VALIDATED_REQUEST = ValidatedRequest(Request("0", (104, 105), 5, prompt_logprobs=True), seed=7)
TOKEN_EVENT = TokenEvent(104, "h", -0.5, False)
FINAL_EVENT = FinishedEvent(FinishReason.END_TOKEN, "hé", 1, make_finished_timeline())


def render_stream(*events, has_details=True, text_prefix=""):
    text = GenerateStreamRenderer(VALIDATED_REQUEST, has_details, text_prefix).render(list(events)).decode()
    return [json.loads(line.removeprefix("data: ")) for line in text.removesuffix("\n\n").split("\n\n")]


@pytest.mark.parametrize(("value", "text"), [
    (-0.5, "-0.5"), (0.0, "0"), (-1.2345677614212036, "-1.23456776"), (-1e-7, "-1e-07"), (None, "null"),
    (math.nan, "null"), (-math.inf, "null")])
def test_float32_numbers_are_rendered_as_valid_json(value, text):
    assert float32_json(value) == text
    json.loads(text)


@pytest.mark.parametrize("text", ["", '"\\', "\n\r\0", "\u2028\x85", "é😀"])
def test_token_json_is_one_ascii_line(text):
    line = token_json(TokenEvent(1, text, -0.5, True))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"id": 1, "text": text, "logprob": -0.5, "special": True}


def test_token_index_counts_across_bursts():
    streaming = GenerateStreamRenderer(VALIDATED_REQUEST, False, "")
    bursts = [streaming.render([TOKEN_EVENT]), streaming.render([TOKEN_EVENT, TOKEN_EVENT])]
    assert [burst.count(b"data: ") for burst in bursts] == [1, 2]
    assert b'{"index":3,' in bursts[1]


def test_event_fields_are_in_tgi_order():
    assert GenerateStreamRenderer(VALIDATED_REQUEST, False, "").render([TOKEN_EVENT]) == (
        b'data: {"index":1,"token":{"id":104,"text":"h","logprob":-0.5,"special":false},'
        b'"generated_text":null,"details":null}\n\n')


def test_last_token_event_carries_the_final_fields():
    first, last = render_stream(TOKEN_EVENT, TOKEN_EVENT, FINAL_EVENT)
    assert (first["generated_text"], last["generated_text"]) == (None, "hé")
    assert last["details"] == {"finish_reason": "eos_token", "generated_tokens": 1, "seed": 7, "input_length": 2}


def test_end_without_a_token_is_sent_with_an_empty_special_token():
    streaming = GenerateStreamRenderer(VALIDATED_REQUEST, True, "")
    streaming.render([TOKEN_EVENT])
    event = json.loads(streaming.render([FinishedEvent(FinishReason.TIMEOUT, "hé", 1,
                                                       make_finished_timeline())]).removeprefix(b"data: "))
    assert (event["index"], event["generated_text"], event["details"]["finish_reason"]) == (2, "hé", "timeout")
    assert event["token"] == {"id": 0, "text": "", "logprob": 0, "special": True}
    assert streaming.is_finished


def test_details_are_only_sent_if_requested():
    assert render_stream(TOKEN_EVENT, FINAL_EVENT, has_details=False)[0]["details"] is None


def test_text_prefix_is_prepended():
    assert render_stream(TOKEN_EVENT, FINAL_EVENT, text_prefix="hi ")[0]["generated_text"] == "hi hé"


def test_top_tokens_are_sent_if_present():
    token = TokenEvent(104, "h", -0.5, False, (TopToken(104, "h", -0.5, False), TopToken(105, "i", -math.inf, False)))
    [event] = render_stream(token)
    assert [top["id"] for top in event["top_tokens"]] == [104, 105]
    assert event["top_tokens"][1]["logprob"] is None
    assert "top_tokens" not in render_stream(TOKEN_EVENT)[0]


def test_failure_is_the_last_event():
    assert render_stream(TOKEN_EVENT, FailedEvent(GenerationFailed("broken")))[1] == {
        "error": "Request failed during generation: broken", "error_type": "generation"}


def test_cancelled_request_has_no_last_event():
    with pytest.raises(Cancelled):
        render_stream(TOKEN_EVENT, FailedEvent(Cancelled("too slow")))


def make_output(*tokens: TokenEvent) -> GenerationOutput:
    return GenerationOutput(VALIDATED_REQUEST, list(tokens), [None, -2.0], FINAL_EVENT)


def test_prompt_tokens_have_logprobs():
    details = json.loads(details_json(make_output(TOKEN_EVENT), create_byte_tokenizer(), [], ""))
    assert details["prefill"] == [{"id": 104, "text": "h", "logprob": None}, {"id": 105, "text": "i", "logprob": -2.0}]


def test_details_fields_are_in_tgi_order():
    output = make_output(TokenEvent(104, "h", -0.5, False, (TopToken(104, "h", -0.5, False),)))
    details = json.loads(details_json(output, create_byte_tokenizer(), [output], "hi "))
    assert list(details) == ["finish_reason", "generated_tokens", "seed", "prefill", "tokens", "best_of_sequences",
                             "top_tokens"]
    assert list(details["best_of_sequences"][0]) == ["generated_text", "finish_reason", "generated_tokens", "seed",
                                                     "prefill", "tokens", "top_tokens"]
    assert details["best_of_sequences"][0]["generated_text"] == "hi hé"
