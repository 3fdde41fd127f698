"""Rendering of events as OpenAI's JSON."""

import json

import pytest
from support.expected_streams import lived

from router.engine.stream import FailedEvent, FinishedEvent, PromptEvent, TokenEvent
from router.errors import Cancelled, GenerationFailed, Overloaded
from router.http.openai.rendering import Chunks, Extras, Label, completion_json
from router.http.transport.collect import Answer
from router.request import FinishReason, Request
from router.validation.validator import Choice

LABEL = Label("chatcmpl-1", 1_700_000_000, 'the "loom"', "0.1.0-native")
TOKEN = TokenEvent(104, "h", -0.5, False)
SPECIAL = TokenEvent(256, "<|end|>", -0.5, True)
HEAD = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": 'the "loom"', "system_fingerprint": "0.1.0-native"}


def end(text, num_tokens=2, reason=FinishReason.LENGTH):
    return FinishedEvent(reason, text, num_tokens, lived())


def rendered(*bursts, usage=False):
    chunks = Chunks(LABEL, 3, Extras(usage))
    text = b"".join(chunks.burst(list(burst)) for burst in bursts).decode()
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) if line != "data: [DONE]" else None for line in lines]


def contents(chunks):
    return [chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk is not None]


def test_a_chunk_has_the_fields_of_tgi_in_their_order():
    assert Chunks(LABEL, 3, Extras()).burst([TOKEN]) == (
        b'data: {"object":"chat.completion.chunk","id":"chatcmpl-1","created":1700000000,"model":"the \\"loom\\"",'
        b'"system_fingerprint":"0.1.0-native","choices":[{"index":0,"delta":{"role":"assistant","content":"h"},'
        b'"logprobs":null,"finish_reason":null}],"usage":null}\n\n')


def test_only_the_first_chunk_tells_the_role():
    chunks = rendered([TokenEvent(195, "", -0.5, False), TOKEN], [TOKEN])
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant", None, None]


@pytest.mark.parametrize(("reason", "told"), [
    (FinishReason.END_TOKEN, "stop"), (FinishReason.STOP_STRING, "stop"), (FinishReason.LENGTH, "length"),
    (FinishReason.TIMEOUT, "length")])
def test_the_last_token_carries_the_end_in_words_of_openai(reason, told):
    first, last, done = rendered([TOKEN], [TOKEN, end("hh", reason=reason)])
    assert [chunk["choices"][0]["finish_reason"] for chunk in (first, last)] == [None, told]
    assert done is None


@pytest.mark.parametrize("bursts", [
    [[TOKEN, TOKEN, TOKEN, end("hhh", 3)]], [[TOKEN], [TOKEN, TOKEN, end("hhh", 3)]],
    [[TOKEN, TOKEN], [TOKEN, end("hhh", 3)]], [[TOKEN], [TOKEN], [TOKEN, end("hhh", 3)]]])
def test_there_is_a_chunk_for_each_token_however_they_come(bursts):
    assert contents(rendered(*bursts)) == ["h", "h", "h"]


def test_special_tokens_have_no_text():
    assert contents(rendered([SPECIAL, TOKEN], [SPECIAL, end("h", 3)])) == ["", "h", ""]


def test_text_ends_with_the_stop_string_and_not_with_the_token():
    token = TokenEvent(1, "e. And", -0.5, False)
    assert contents(rendered([TOKEN], [token, end("he.")])) == ["h", "e."]


def test_what_was_held_back_comes_with_the_end():
    assert contents(rendered([TOKEN], [TokenEvent(195, "", -0.5, False), end("h\ufffd")])) == ["h", "\ufffd"]


def test_an_end_without_a_last_token_has_a_chunk():
    chunks = rendered([TOKEN], [end("h", 1, FinishReason.TIMEOUT)])
    assert contents(chunks) == ["h", ""]
    assert chunks[1]["choices"][0]["finish_reason"] == "length"


def test_usage_comes_in_a_chunk_of_its_own_when_it_is_asked_for():
    first, last, usage, done = rendered([TOKEN], [TOKEN, end("hh")], usage=True)
    assert first["usage"] is last["usage"] is done is None
    assert usage == HEAD | {"object": "chat.completion.chunk", "choices": [], "usage": {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}


def test_logprobs_of_the_prompt_are_nobodys_affair():
    assert contents(rendered([TOKEN, PromptEvent(1, (-2.0,)), TOKEN])) == ["h", "h"]


@pytest.mark.parametrize("text", ['"\\', "\n\r\0", "\u2028\x85", "é😀"])
def test_a_chunk_is_one_line_of_ascii_whatever_its_text(text):
    line = Chunks(LABEL, 3, Extras()).burst([TokenEvent(1, text, -0.5, False)]).decode().removesuffix("\n\n")
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert contents([json.loads(line[6:])]) == [text]


@pytest.mark.parametrize(("error", "kind", "status"), [
    (GenerationFailed("broken"), "generation", 424), (Overloaded("full"), "overloaded", 429)])
def test_a_failure_is_told_as_clients_of_tgi_openai_and_the_hub_read_it(error, kind, status):
    token, failure, done = rendered([TOKEN, FailedEvent(error)])
    assert contents([token]) == ["h"]
    assert failure["error"].pop("message").endswith(str(error))
    assert failure == {"error": {"type": kind, "http_status_code": status}, "error_type": kind}
    assert done is None


def test_a_cancelled_request_has_no_last_chunk():
    with pytest.raises(Cancelled):
        rendered([FailedEvent(Cancelled("too slow"))])


@pytest.mark.parametrize("event", [end("h"), FailedEvent(GenerationFailed("broken"))])
def test_nothing_comes_after_the_end(event):
    chunks = Chunks(LABEL, 3, Extras())
    chunks.burst([TOKEN])
    assert not chunks.ended
    chunks.burst([event])
    assert chunks.ended


def test_a_whole_completion_has_the_fields_of_tgi_in_their_order():
    answer = Answer(Choice(Request("0", (1, 2, 3), 5), None), [TOKEN], [], end("hé", reason=FinishReason.STOP_STRING))
    told = json.loads(completion_json(LABEL, answer, Extras()))
    assert list(told) == ["object", "id", "created", "model", "system_fingerprint", "choices", "usage"]
    assert told == HEAD | {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hé"}, "logprobs": None,
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
