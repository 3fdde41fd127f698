"""Rendering of events as OpenAI's JSON."""

import json

import pytest
from support.servers.expected_streams import make_finished_timeline

from router.engine.stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, TokenEvent
from router.errors import Cancelled, GenerationFailed, Overloaded
from router.http.openai.rendering import (
    ChatIncludeOptions,
    OpenAIChatStreamRenderer,
    ResponseMetadata,
    text_chat_completion_json,
)
from router.http.transport.services import GenerationOutput
from router.request import FinishReason, Request
from router.validation.validator import ValidatedRequest

METADATA = ResponseMetadata("chatcmpl-1", 1_700_000_000, 'the "loom"', "0.1.0-native")
TOKEN_EVENT = TokenEvent(104, "h", -0.5, False)
SPECIAL_TOKEN_EVENT = TokenEvent(256, "<|end|>", -0.5, True)
METADATA_JSON = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": 'the "loom"',
                 "system_fingerprint": "0.1.0-native"}


def make_final_event(text, num_tokens=2, reason=FinishReason.LENGTH):
    return FinishedEvent(reason, text, num_tokens, make_finished_timeline())


def render_chunks(*bursts, includes_usage=False):
    chunks = OpenAIChatStreamRenderer(METADATA, 3, ChatIncludeOptions(includes_usage))
    text = b"".join(chunks.render(list(burst)) for burst in bursts).decode()
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) if line != "data: [DONE]" else None for line in lines]


def chunk_contents(chunks):
    return [chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk is not None]


def test_chunk_fields_are_in_tgi_order():
    assert OpenAIChatStreamRenderer(METADATA, 3, ChatIncludeOptions()).render([TOKEN_EVENT]) == (
        b'data: {"object":"chat.completion.chunk","id":"chatcmpl-1","created":1700000000,"model":"the \\"loom\\"",'
        b'"system_fingerprint":"0.1.0-native","choices":[{"index":0,"delta":{"role":"assistant","content":"h"},'
        b'"logprobs":null,"finish_reason":null}],"usage":null}\n\n')


def test_only_the_first_chunk_has_the_role():
    chunks = render_chunks([TokenEvent(195, "", -0.5, False), TOKEN_EVENT], [TOKEN_EVENT])
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant", None, None]


@pytest.mark.parametrize(("reason", "expected"), [
    (FinishReason.END_TOKEN, "stop"), (FinishReason.STOP_STRING, "stop"), (FinishReason.LENGTH, "length"),
    (FinishReason.TIMEOUT, "length")])
def test_last_token_chunk_has_the_openai_finish_reason(reason, expected):
    first, last, done = render_chunks([TOKEN_EVENT], [TOKEN_EVENT, make_final_event("hh", reason=reason)])
    assert [chunk["choices"][0]["finish_reason"] for chunk in (first, last)] == [None, expected]
    assert done is None


@pytest.mark.parametrize("bursts", [[[TOKEN_EVENT, TOKEN_EVENT, TOKEN_EVENT, make_final_event("hhh", 3)]],
                                    [[TOKEN_EVENT], [TOKEN_EVENT, TOKEN_EVENT, make_final_event("hhh", 3)]],
                                    [[TOKEN_EVENT, TOKEN_EVENT], [TOKEN_EVENT, make_final_event("hhh", 3)]],
                                    [[TOKEN_EVENT], [TOKEN_EVENT], [TOKEN_EVENT, make_final_event("hhh", 3)]]])
def test_every_token_has_its_own_chunk(bursts):
    assert chunk_contents(render_chunks(*bursts)) == ["h", "h", "h"]


def test_special_tokens_have_empty_content():
    assert chunk_contents(render_chunks([SPECIAL_TOKEN_EVENT, TOKEN_EVENT],
                                        [SPECIAL_TOKEN_EVENT, make_final_event("h", 3)])) == ["", "h", ""]


def test_text_is_cut_after_the_stop_string():
    token = TokenEvent(1, "e. And", -0.5, False)
    assert chunk_contents(render_chunks([TOKEN_EVENT], [token, make_final_event("he.")])) == ["h", "e."]


def test_held_back_text_comes_with_the_last_chunk():
    assert chunk_contents(render_chunks([TOKEN_EVENT], [TokenEvent(195, "", -0.5, False),
                                                        make_final_event("h\ufffd")])) == ["h", "\ufffd"]


def test_final_event_without_a_token_has_its_own_chunk():
    chunks = render_chunks([TOKEN_EVENT], [make_final_event("h", 1, FinishReason.TIMEOUT)])
    assert chunk_contents(chunks) == ["h", ""]
    assert chunks[1]["choices"][0]["finish_reason"] == "length"


def test_usage_is_sent_in_a_separate_chunk_if_requested():
    first, last, usage, done = render_chunks([TOKEN_EVENT], [TOKEN_EVENT, make_final_event("hh")], includes_usage=True)
    assert first["usage"] is last["usage"] is done is None
    assert usage == METADATA_JSON | {"object": "chat.completion.chunk", "choices": [], "usage": {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}


def test_prompt_logprobs_are_not_sent():
    assert chunk_contents(render_chunks([TOKEN_EVENT, PromptLogprobsEvent(1, (-2.0,)), TOKEN_EVENT])) == ["h", "h"]


@pytest.mark.parametrize("text", ['"\\', "\n\r\0", "\u2028\x85", "é😀"])
def test_chunk_is_one_ascii_line(text):
    line = OpenAIChatStreamRenderer(METADATA, 3, ChatIncludeOptions()).render(
        [TokenEvent(1, text, -0.5, False)]).decode().removesuffix("\n\n")
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert chunk_contents([json.loads(line[6:])]) == [text]


@pytest.mark.parametrize(("error", "kind", "status"), [
    (GenerationFailed("broken"), "generation", 424), (Overloaded("full"), "overloaded", 429)])
def test_failure_chunk_is_readable_by_tgi_openai_and_hub_clients(error, kind, status):
    token, failure, done = render_chunks([TOKEN_EVENT, FailedEvent(error)])
    assert chunk_contents([token]) == ["h"]
    assert failure["error"].pop("message").endswith(str(error))
    assert failure == {"error": {"type": kind, "http_status_code": status}, "error_type": kind}
    assert done is None


def test_a_cancelled_request_has_no_last_chunk():
    with pytest.raises(Cancelled):
        render_chunks([FailedEvent(Cancelled("too slow"))])


@pytest.mark.parametrize("event", [make_final_event("h"), FailedEvent(GenerationFailed("broken"))])
def test_renderer_is_finished_after_the_final_event(event):
    chunks = OpenAIChatStreamRenderer(METADATA, 3, ChatIncludeOptions())
    chunks.render([TOKEN_EVENT])
    assert not chunks.is_finished
    chunks.render([event])
    assert chunks.is_finished


def test_full_completion_fields_are_in_tgi_order():
    answer = GenerationOutput(ValidatedRequest(Request("0", (1, 2, 3), 5), None), [TOKEN_EVENT], [],
                              make_final_event("hé", reason=FinishReason.STOP_STRING))
    completion = json.loads(text_chat_completion_json(METADATA, answer, ChatIncludeOptions()))
    assert list(completion) == ["object", "id", "created", "model", "system_fingerprint", "choices", "usage"]
    assert completion == METADATA_JSON | {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hé"}, "logprobs": None,
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
