"""Answers with reasoning and tool calls as OpenAI's JSON, whole and in chunks."""

import json
from dataclasses import replace

import pytest
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FinishedEvent, TokenEvent
from router.http.openai.rendering import ChatOutputOptions, ResponseMetadata
from router.http.openai.tool_call_rendering import (
    OpenAIToolChatStreamRenderer,
    chat_finish_reason,
    tool_chat_choice_json,
)
from router.http.transport.services import GenerationOutput
from router.request import FinishReason, Request
from router.text.output_formats import HERMES_FORMAT
from router.text.response_parser import OutputFormatParser
from router.validation.validator import ValidatedRequest

METADATA = ResponseMetadata("chatcmpl-1", 1_700_000_000, "loom", "0.1.0-native")
END_TOKEN_EVENT = TokenEvent(256, "<|im_end|>", -0.5, True)
TOOL_CALL_TEXT = '<tool_call>\n{"name": "stop", "arguments": {"at": "\u00e9"}}\n</tool_call>'
TOOL_CALL_JSON = {"type": "function",
                  "function": {"description": None, "name": "stop", "arguments": '{"at": "\u00e9"}'}}


def split_into_token_events(text, size=3):
    return [TokenEvent(1, text[place:place + size], -0.5, False) for place in range(0, len(text), size)]


def make_final_event(text, reason=FinishReason.END_TOKEN):
    return FinishedEvent(reason, text, len(split_into_token_events(text)) + 1, make_finished_timeline())


def render_choice(text, reason=FinishReason.END_TOKEN, prompt="", **output_options):
    token_events = [*split_into_token_events(text), *[END_TOKEN_EVENT] * (reason is FinishReason.END_TOKEN)]
    answer = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 5), None), token_events, [],
                              make_final_event(text, reason))
    return json.loads(tool_chat_choice_json(METADATA, 0, answer, ChatOutputOptions(**output_options),
                                            OutputFormatParser(HERMES_FORMAT, prompt)).json)


def render_stream(text, reason=FinishReason.END_TOKEN, prompt="", **output_options):
    chunks = OpenAIToolChatStreamRenderer(METADATA, 0, 2, ChatOutputOptions(**output_options),
                                          OutputFormatParser(HERMES_FORMAT, prompt))
    token_events = [*split_into_token_events(text), *[END_TOKEN_EVENT] * (reason is FinishReason.END_TOKEN)]
    bursts = [chunks.render([token])
              for token in token_events[:-1]] + [chunks.render([token_events[-1], make_final_event(text, reason)])]
    *lines, rest = b"".join(bursts).decode().split("\n\n")
    assert (rest, chunks.is_finished) == ("", True)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def get_deltas(chunks):
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


def remove_call_id(call):
    assert call["id"].startswith("call_")
    return {key: value for key, value in call.items() if key != "id"}


def test_plain_text_becomes_the_content():
    choice = render_choice("Hello, you.")
    assert choice["message"] == {"role": "assistant", "content": "Hello, you.", "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_tool_call_has_no_content():
    choice = render_choice(TOOL_CALL_TEXT)
    assert choice["finish_reason"] == "tool_calls"
    assert [remove_call_id(call) for call in choice["message"].pop("tool_calls")] == [TOOL_CALL_JSON]
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}


def test_text_before_tool_calls_is_kept_as_content():
    choice = render_choice(f"Well.\n{TOOL_CALL_TEXT}\n{TOOL_CALL_TEXT}")
    assert choice["message"]["content"] == "Well."
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2


@pytest.mark.parametrize(("prompt", "text"), [
    ("", "<think>\nHm.\n</think>\nHello."), ("<|im_start|>assistant\n<think>\n", "Hm.\n</think>\nHello.")])
def test_reasoning_is_returned_under_both_field_names(prompt, text):
    message = render_choice(text, prompt=prompt)["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("Hello.", "Hm.", "Hm.")


def test_truncated_tool_call_stays_text_and_ends_by_length():
    choice = render_choice(TOOL_CALL_TEXT[:30], FinishReason.LENGTH)
    assert (choice["message"]["content"], choice["finish_reason"]) == (TOOL_CALL_TEXT[:30], "length")
    assert "".join(delta.get("content", "") for delta in get_deltas(
        render_stream(TOOL_CALL_TEXT[:30], FinishReason.LENGTH))) == TOOL_CALL_TEXT[:30]


def test_stream_sends_text_and_calls_incrementally():
    chunks = render_stream(f"Well.\n{TOOL_CALL_TEXT}\n{TOOL_CALL_TEXT}")
    deltas = get_deltas(chunks)
    assert [delta.get("role") for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert "".join(delta.get("content", "") for delta in deltas) == "Well."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for index in (0, 1):
        first, *others = [call for call in calls if call["index"] == index]
        assert len(others) > 1
        first["function"]["arguments"] += "".join(call["function"]["arguments"] for call in others)
        assert remove_call_id(first) == {"index": index, **TOOL_CALL_JSON}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [*[None] * (len(chunks) - 1), "tool_calls"]


def test_stream_without_tool_calls_ends_normally():
    chunks = render_stream("Hello, you.")
    assert "".join(delta.get("content", "") for delta in get_deltas(chunks)) == "Hello, you."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_logprobs_cover_every_token_including_tool_calls():
    for chunks in (render_stream(TOOL_CALL_TEXT, includes_logprobs=True),
                   render_stream("Hello.", includes_logprobs=True)):
        tokens = [token for chunk in chunks
                  for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert tokens[-1]["token"] == "<|im_end|>"
    assert ("".join(token["token"]
                    for token in render_choice(TOOL_CALL_TEXT, includes_logprobs=True)["logprobs"]["content"])
            == f"{TOOL_CALL_TEXT}<|im_end|>")


@pytest.mark.parametrize("text", ["Hello, you.", TOOL_CALL_TEXT, f"Well.{TOOL_CALL_TEXT}"])
def test_unknown_end_token_is_not_sent_as_content(text):
    """Regression: with Hermes' template and the model's own end token, that token was sent as content."""
    end_token = TokenEvent(2, "<|the end|>", -0.5, True)
    token_events = [*split_into_token_events(text), end_token]
    final_event = FinishedEvent(FinishReason.END_TOKEN, text, len(token_events), make_finished_timeline())
    answer = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 5), None), token_events, [], final_event)
    assert "the end" not in tool_chat_choice_json(METADATA, 0, answer, ChatOutputOptions(),
                                                  OutputFormatParser(HERMES_FORMAT, "")).json
    chunks = OpenAIToolChatStreamRenderer(METADATA, 0, 2, ChatOutputOptions(),
                                          OutputFormatParser(HERMES_FORMAT, ""))
    assert b"the end" not in chunks.render([*token_events, final_event])


def test_stop_token_at_the_length_limit_is_no_content():
    stop_token = TokenEvent(25, "3", -0.5, True)
    final_event = FinishedEvent(FinishReason.LENGTH, "Hi", 2, make_finished_timeline(), is_stopped=True)
    token_events = [TokenEvent(7, "Hi", -0.5, False), stop_token]
    answer = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 5), None), token_events, [], final_event)
    choice = json.loads(tool_chat_choice_json(METADATA, 0, answer, ChatOutputOptions(),
                                              OutputFormatParser(HERMES_FORMAT, "")).json)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hi", "stop")
    renderer = OpenAIToolChatStreamRenderer(METADATA, 0, 2, ChatOutputOptions(),
                                            OutputFormatParser(HERMES_FORMAT, ""))
    lines = renderer.render([*token_events, final_event]).decode().removesuffix("\n\n").split("\n\n")
    contents = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "") for line in lines]
    assert "".join(contents) == "Hi"


def test_call_that_a_stop_string_ends_with_the_last_possible_token_is_a_call():
    """Regression: its finish reason was `stop`, and clients did not run the call."""
    final_event = FinishedEvent(FinishReason.LENGTH, f"{TOOL_CALL_TEXT}STOP", 9, make_finished_timeline(),
                                is_stopped=True)
    assert chat_finish_reason(final_event, 1, METADATA.dialect) == "tool_calls"
    assert chat_finish_reason(replace(final_event, is_stopped=False), 1, METADATA.dialect) == "length"
    assert chat_finish_reason(final_event, 0, METADATA.dialect) == "stop"
