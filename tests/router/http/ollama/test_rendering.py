"""Answers in Ollama's format: a stream in any pieces has the content of the whole response."""

import json
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed
from router.http.ollama.rendering import (
    OllamaResponseRenderer,
    OllamaStreamRenderer,
    format_time,
    ollama_answer_json,
    ollama_call_json,
    render_error_line,
)
from router.http.transport.services import GenerationOutput
from router.request import FinishReason, Request
from router.text.constrained_answer_parsers import RequiredCallParser
from router.text.output_formats import HERMES_FORMAT
from router.text.response_parser import OutputFormatParser, ParsedToolCall
from router.text.tokenizer import create_byte_tokenizer
from router.validation.validator import ValidatedRequest

CALL = '<tool_call>{"name": "f", "arguments": {"a": "\u00e9"}}</tool_call>'
SNIPPETS = st.sampled_from(["<think>", "</think>", " ", "\n", "Hi", "\u00e9", CALL, CALL[:30], "STOP", "ST",
                            '{"name": "f", "arguments": {"a": 1', "}}", CALL.replace("}}", ', NaN}}'), CALL[:44]])
MAKE_PARSERS = {
    "none": lambda: None, "calls": lambda: OutputFormatParser(HERMES_FORMAT, "", [{"function": {"name": "f"}}]),
    "required": RequiredCallParser}  # with it alone an answer may be cut off within a call
VARYING_FIELDS = ("created_at", "total_duration")
RESPONSE = OllamaResponseRenderer("loom", 0.0, is_chat=True, logprob_tokenizer=create_byte_tokenizer())


def make_tokens(text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [TokenEvent(1, text[start:stop], -0.5, False) for start, stop in pairwise(places)]


def add_up(objects):
    """Return one object with the content of all, as a client adds up a stream."""
    *earlier, last = objects
    message = {"role": "assistant", "content": "", "thinking": "", "tool_calls": []}
    for part in (each["message"] for each in objects):
        message = {"role": part["role"], **{name: message[name] + part.get(name, type(message[name])())
                                            for name in ("content", "thinking", "tool_calls")}}
    logprobs = [entry for each in objects for entry in each.get("logprobs", ())]
    assert all(each["done"] is False for each in earlier)
    return (last | {"message": {name: value for name, value in message.items() if value or name == "content"}}
            | ({"logprobs": logprobs} if logprobs else {}))


@given(snippets=st.lists(SNIPPETS, max_size=8), cuts=st.lists(st.integers(0, 200), max_size=12),
       reason=st.sampled_from(FinishReason), stops=st.sampled_from([(), ("STOP",)]),
       kind=st.sampled_from([*MAKE_PARSERS]))
def test_stream_in_any_pieces_adds_up_to_the_whole_response(snippets, cuts, reason, stops, kind):
    text = "".join(snippets).partition("STOP")[0]
    is_stopped = bool(stops) and reason is FinishReason.STOP_STRING
    text += "STOP" * is_stopped
    tokens = make_tokens(text, cuts)
    end = FinishedEvent(reason, text, len(tokens), make_finished_timeline(0.25, 0.125, 0.375), is_stopped=is_stopped)
    output = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 50), None), tokens, [], end)
    whole = json.loads(ollama_answer_json(RESPONSE, output, MAKE_PARSERS[kind](), stops))
    renderer = OllamaStreamRenderer(RESPONSE, 2, stops, MAKE_PARSERS[kind]())
    bursts = [renderer.render([token]) for token in tokens[:-1]] + [renderer.render([*tokens[-1:], end])]
    streamed = add_up([json.loads(line) for line in b"".join(bursts).splitlines()])
    assert all(burst.endswith(b"\n") for burst in bursts if burst)
    assert streamed | dict.fromkeys(VARYING_FIELDS) == whole | dict.fromkeys(VARYING_FIELDS)
    assert (whole["done"], whole["eval_count"], len(whole.get("logprobs", ()))) == (True, len(tokens), len(tokens))
    assert whole["done_reason"] == ("length" if reason in {FinishReason.LENGTH, FinishReason.TIMEOUT} else "stop")


def test_durations_are_those_of_the_timeline_in_nanoseconds():
    end = FinishedEvent(FinishReason.LENGTH, "", 3, make_finished_timeline(0.25, 0.125, 0.375))
    fields = json.loads(f"{{{RESPONSE.render_end_fields(end, 2)}}}")
    assert fields.pop("total_duration") > 750_000_000
    assert fields == {"done": True, "done_reason": "length", "load_duration": 250_000_000, "prompt_eval_count": 2,
                      "prompt_eval_duration": 125_000_000, "eval_count": 3, "eval_duration": 375_000_000}


def test_time_has_nanoseconds():
    assert format_time(1_700_000_000_000_000_042) == "2023-11-14T22:13:20.000000042Z"
    assert datetime.fromisoformat("2023-11-14T22:13:20Z").timestamp() == 1_700_000_000


def test_failure_comes_after_the_text_before_it():
    renderer = OllamaStreamRenderer(RESPONSE, 2, ("STOP",), None)
    rendered = renderer.render([TokenEvent(1, "a S", -0.5, False), FailedEvent(GenerationFailed("broken"))])
    assert [json.loads(line)["message"]["content"] for line in rendered.splitlines()] == ["a ", "S"]
    assert render_error_line(renderer.error) == '{"error":"Request failed during generation: broken"}\n'


@pytest.mark.parametrize(("arguments", "expected"), [('{"a": "\u00e9"}', {"a": "\u00e9"}), ("{}", {}), ('{"a', None),
                                                     ('{"a": NaN}', None)])
def test_arguments_of_a_call_are_an_object(arguments, expected):
    rendered = ollama_call_json(1, ParsedToolCall("f", arguments))
    assert (rendered is None) == (expected is None)
    if rendered is not None:
        assert rendered.isascii()
        assert json.loads(rendered) == {"function": {"index": 1, "name": "f", "arguments": expected}}
