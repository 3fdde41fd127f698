"""Rendering of events as OpenAI's JSON."""

import json

import pytest
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, TokenEvent
from router.errors import Cancelled, GenerationFailed, Overloaded
from router.http.openai.rendering import (
    CHAT_CHUNK_TYPE,
    ChatOutputOptions,
    OpenAIChatStreamRenderer,
    ResponseMetadata,
    TokenChunkDetails,
    TokenChunkRenderer,
    chat_completion_json,
    final_error_events,
    text_chat_choice_json,
    usage_chunk,
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


def parse_chunks(text):
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines]


def render_chunks(*bursts, index=0):
    renderer = OpenAIChatStreamRenderer(METADATA, index, 3, ChatOutputOptions())
    return parse_chunks(b"".join(renderer.render(list(burst)) for burst in bursts).decode())


def chunk_contents(chunks):
    return [chunk["choices"][0]["delta"]["content"] for chunk in chunks]


def test_chunks_of_a_choice_have_its_index():
    chunks = render_chunks([TOKEN_EVENT], [TOKEN_EVENT, make_final_event("hh")], index=7)
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [7, 7]


def test_chunk_fields_are_in_tgi_order():
    assert OpenAIChatStreamRenderer(METADATA, 0, 3, ChatOutputOptions()).render([TOKEN_EVENT]) == (
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
    chunks = render_chunks([TOKEN_EVENT], [TOKEN_EVENT, make_final_event("hh", reason=reason)])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, expected]


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


@pytest.mark.parametrize(("num_choices", "num_prompt_tokens"), [(1, 6), (2, 3)])
def test_usage_chunk_counts_a_prompt_once_for_its_choices(num_choices, num_prompt_tokens):
    renderers = [OpenAIChatStreamRenderer(METADATA, index, 3, ChatOutputOptions()) for index in range(2)]
    for renderer in renderers:
        renderer.render([TOKEN_EVENT, make_final_event("h")])
    [usage] = parse_chunks(usage_chunk(METADATA, CHAT_CHUNK_TYPE, renderers, num_choices))
    assert usage == METADATA_JSON | {"object": "chat.completion.chunk", "choices": [], "usage": {
        "prompt_tokens": num_prompt_tokens, "completion_tokens": 4, "total_tokens": num_prompt_tokens + 4}}


def render_with_usage(*bursts):
    renderer = TokenChunkRenderer(OpenAIChatStreamRenderer(METADATA, 0, 3, ChatOutputOptions()),
                                  TokenChunkDetails(has_usage=True))
    chunks = parse_chunks(b"".join(renderer.render(burst) for burst in bursts).decode())
    assert renderer.is_finished
    return chunks


@pytest.mark.parametrize("bursts", [
    ([TOKEN_EVENT], [TOKEN_EVENT, make_final_event("hh")]), ([TOKEN_EVENT, TOKEN_EVENT, make_final_event("hh")],),
    ([PromptLogprobsEvent(1, (-2.0,))], [TOKEN_EVENT, TOKEN_EVENT], [make_final_event("hh")])])
def test_continuous_usage_counts_the_tokens_so_far(bursts):
    chunks, plain_chunks = render_with_usage(*bursts), render_chunks(*bursts)
    counts = [1, 2, 2] if len(bursts) == 3 else [1, 2]
    assert [chunk.pop("usage") for chunk in chunks] == [
        {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count} for count in counts]
    assert {chunk.pop("usage") for chunk in plain_chunks} == {None}
    assert chunks == plain_chunks


def test_text_that_looks_like_a_usage_is_sent_unchanged():
    text = '"usage":null}\n\n'
    [chunk] = render_with_usage([TokenEvent(1, text, -0.5, False), make_final_event(text, 1)])
    assert chunk_contents([chunk]) == [text]


def test_prompt_logprobs_are_not_sent():
    assert chunk_contents(render_chunks([TOKEN_EVENT, PromptLogprobsEvent(1, (-2.0,)), TOKEN_EVENT])) == ["h", "h"]


@pytest.mark.parametrize("text", ['"\\', "\n\r\0", "\u2028\x85", "é😀"])
def test_chunk_is_one_ascii_line(text):
    line = OpenAIChatStreamRenderer(METADATA, 0, 3, ChatOutputOptions()).render(
        [TokenEvent(1, text, -0.5, False)]).decode().removesuffix("\n\n")
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert chunk_contents([json.loads(line[6:])]) == [text]


@pytest.mark.parametrize("error", [GenerationFailed("broken"), Cancelled("too slow")])
def test_failure_is_kept_for_the_handler_which_ends_all_choices_with_it(error):
    renderer = OpenAIChatStreamRenderer(METADATA, 0, 3, ChatOutputOptions())
    assert chunk_contents(parse_chunks(renderer.render([TOKEN_EVENT, FailedEvent(error)]).decode())) == ["h"]
    assert (renderer.error, renderer.is_finished) == (error, True)


@pytest.mark.parametrize(("error", "kind", "status"), [
    (GenerationFailed("broken"), "generation", 424), (Overloaded("full"), "overloaded", 429)])
def test_failure_chunk_is_readable_by_tgi_openai_and_hub_clients(error, kind, status):
    failure, done = final_error_events(error).removesuffix("\n\n").split("\n\n")
    failure = json.loads(failure.removeprefix("data: "))
    assert failure["error"].pop("message").endswith(str(error))
    assert failure == {"error": {"type": kind, "http_status_code": status}, "error_type": kind}
    assert done == "data: [DONE]"


@pytest.mark.parametrize("event", [make_final_event("h"), FailedEvent(GenerationFailed("broken"))])
def test_renderer_is_finished_after_the_final_event(event):
    chunks = OpenAIChatStreamRenderer(METADATA, 0, 3, ChatOutputOptions())
    chunks.render([TOKEN_EVENT])
    assert not chunks.is_finished
    chunks.render([event])
    assert chunks.is_finished


def test_full_completion_fields_are_in_tgi_order():
    answer = GenerationOutput(ValidatedRequest(Request("0", (1, 2, 3), 5), None), [TOKEN_EVENT], [],
                              make_final_event("hé", reason=FinishReason.STOP_STRING))
    choice = text_chat_choice_json(METADATA, 0, answer, ChatOutputOptions())
    completion = json.loads(chat_completion_json(METADATA, [answer], [choice]).text)
    assert list(completion) == ["object", "id", "created", "model", "system_fingerprint", "choices", "usage"]
    assert completion == METADATA_JSON | {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hé", "refusal": None}, "logprobs": None,
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
