"""Answers as Anthropic's messages: a stream in any pieces adds up to the whole message."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FinishedEvent, TokenEvent
from router.http.anthropic.rendering import AnthropicStreamRenderer, MessageMetadata, answer_json, tool_input_json
from router.http.openai.answer_parts import parse_answer
from router.http.transport.services import GenerationOutput
from router.request import FinishReason, Request
from router.text.constrained_answer_parsers import RequiredCallParser
from router.text.output_formats import HERMES_FORMAT
from router.text.response_parser import OutputFormatParser
from router.validation.validator import ValidatedRequest

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1, "b": "\u00e9"}}</tool_call>'
REQUIRED_CALL = '{"name": "f", "arguments": {"a": 1, "b": "\u00e9 \\n", "c": [1.5, {"d": "e"}]}}'
SNIPPETS = st.sampled_from(["<think>", "</think>", " ", "\n", "Hi", "\u00e9\U0001f600", CALL, CALL[:30], REQUIRED_CALL,
                            *(REQUIRED_CALL[:end] for end in (10, 30, 45, 60)), "STOP", "ST", "<tool_call>",
                            CALL.replace("}}", ", NaN}}"), CALL[:44]])
MAKE_PARSERS = {
    "none": lambda: None, "calls": lambda: OutputFormatParser(HERMES_FORMAT, "", [{"function": {"name": "f"}}]),
    "required": RequiredCallParser}
BLOCK_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def make_metadata(stop_sequences=(), *, shows_thinking=True):
    return MessageMetadata("msg_1", "loom", 20, stop_sequences, shows_thinking)


def make_end(text, num_tokens, reason, *, is_stopped=False):
    timeline = make_finished_timeline()
    timeline.num_prefix_hit_tokens = 16
    return FinishedEvent(reason, text, num_tokens, timeline, is_stopped=is_stopped)


def parse_events(text):
    """Return the data of events, each of which has its type as its name, too."""
    assert text.isascii()
    events = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def parse_partial_object(text):
    """Parse as Anthropic's client does, but return an empty object for JSON that no grammar lets a model begin."""
    try:
        return from_json(text, allow_partial=True)
    except ValueError:
        return {}


def accumulate_message(events):
    """Return the message that a client makes of the events of a stream, whose order is checked."""
    start, ping, *block_events, message_delta, stop = events
    assert [event["type"] for event in (start, ping, message_delta, stop)] == [
        "message_start", "ping", "message_delta", "message_stop"]
    message, is_open, inputs = start["message"], False, {}
    content = message["content"]
    for event in block_events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert (is_open, index) == (False, len(content))
                content.append(block)
                is_open = True
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert (is_open, index) == (True, len(content) - 1)
                if delta["type"] == "input_json_delta":
                    inputs[index] = inputs.get(index, "") + delta["partial_json"]
                    content[index]["input"] = parse_partial_object(inputs[index])
                else:
                    field = BLOCK_FIELDS[delta["type"]]
                    content[index][field] += delta[field]
            case {"type": "content_block_stop", "index": index}:
                assert (is_open, index) == (True, len(content) - 1)
                is_open = False
            case _:
                raise AssertionError(event)
    assert not is_open
    return message | message_delta["delta"] | {"usage": message["usage"] | message_delta["usage"]}


def stream_events(metadata, parser, tokens, end):
    renderer = AnthropicStreamRenderer(metadata, parser)
    bursts = [renderer.render([token]) for token in tokens[:-1]] + [renderer.render([*tokens[-1:], end])]
    return parse_events(renderer.render_opening() + b"".join(bursts).decode())


def without_call_ids(message):
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
    return message


@given(snippets=st.lists(SNIPPETS, max_size=8), cuts=st.lists(st.integers(0, 400), max_size=12),
       reason=st.sampled_from(FinishReason), kind=st.sampled_from([*MAKE_PARSERS]), metadata=st.builds(
           make_metadata, st.sampled_from([(), ("STOP",), ("OP", "STOP")]), shows_thinking=st.booleans()))
def test_stream_in_any_pieces_adds_up_to_the_whole_message(snippets, cuts, reason, kind, metadata):
    text = "".join(snippets).partition("STOP")[0]
    is_stopped = bool(metadata.stop_sequences) and reason in {FinishReason.STOP_STRING, FinishReason.LENGTH}
    text += "STOP" * is_stopped
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    tokens = [TokenEvent(1, text[start:stop], -0.5, False) for start, stop in pairwise(places)]
    end = make_end(text, len(tokens), reason, is_stopped=is_stopped)
    output = GenerationOutput(ValidatedRequest(Request("0", (1,) * 20, 50), None), tokens, [], end)
    whole = answer_json(metadata, parse_answer(output, MAKE_PARSERS[kind](), metadata.stop_sequences))
    message = json.loads(whole)
    assert whole.isascii()
    streamed = accumulate_message(stream_events(metadata, MAKE_PARSERS[kind](), tokens, end))
    assert without_call_ids(streamed) == without_call_ids(message)
    assert message["usage"] == {"input_tokens": 4, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 0,
                                "output_tokens": len(tokens)}


def test_events_of_reasoning_text_and_a_call():
    texts = ["<think>", "Hm", "</think>", "Yes", CALL]
    tokens = [TokenEvent(1, text, -0.5, False) for text in texts]
    events = stream_events(make_metadata(), MAKE_PARSERS["calls"](), tokens,
                           make_end("".join(texts), 5, FinishReason.END_TOKEN))
    kinds = [event.get("delta", event.get("content_block", {})).get("type", event["type"]) for event in events]
    assert kinds == ["message_start", "ping",
                     "thinking", "thinking_delta", "signature_delta", "content_block_stop",
                     "text", "text_delta", "content_block_stop",
                     "tool_use", "input_json_delta", "content_block_stop", "message_delta", "message_stop"]
    assert events[0]["message"] == {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "loom", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 20, "cache_creation_input_tokens": None,
                                         "cache_read_input_tokens": None, "output_tokens": 0}}


@pytest.mark.parametrize(("reason", "is_stopped", "has_tool_calls", "expected"), [
    (FinishReason.END_TOKEN, False, False, ("end_turn", None)),
    (FinishReason.END_TOKEN, False, True, ("tool_use", None)),
    (FinishReason.STOP_STRING, True, False, ("stop_sequence", "STOP")),
    (FinishReason.STOP_STRING, True, True, ("tool_use", None)),
    (FinishReason.LENGTH, True, False, ("stop_sequence", "STOP")),
    (FinishReason.LENGTH, True, True, ("tool_use", None)),
    (FinishReason.LENGTH, False, False, ("max_tokens", None)),
    (FinishReason.LENGTH, False, True, ("max_tokens", None)),
    (FinishReason.TIMEOUT, False, False, ("max_tokens", None))])
def test_stop_reason_is_that_of_anthropic(reason, is_stopped, has_tool_calls, expected):
    fields = make_metadata(("OP", "STOP", "x")).stop_fields(make_end("a STOP", 1, reason, is_stopped=is_stopped),
                                                            has_tool_calls=has_tool_calls)
    assert tuple(json.loads(f"{{{fields}}}").values()) == expected


@pytest.mark.parametrize(("arguments", "expected"), [
    ('{"a": "\u00e9"}', '{"a": "\\u00e9"}'), ('{"a": 1, "b": "cut o', '{"a": 1}'), ("{", "{}"), ("", "{}"),
    ('{"a": 1e999}', "{}")])
def test_input_of_a_call_is_always_an_object(arguments, expected):
    assert tool_input_json(arguments) == expected
