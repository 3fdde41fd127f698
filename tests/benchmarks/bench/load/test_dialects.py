"""Tests of benchmarks/bench/load/dialects.py."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.dialects import DIALECTS, EventStreamParser, ParsedEvent, RequestOptions, get_error_message
from benchmarks.bench.load.request_records import PlannedRequest

BENCH_REQUEST = PlannedRequest(3, "a prompt", 25, adapter="org/kind")
TGI_EVENTS = [{"index": 1, "token": {"id": 5, "text": "é"}, "generated_text": None, "details": None},
              {"index": 2, "token": {"id": 6, "text": "b"}, "generated_text": "éb",
               "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 7, "seed": None}}]
DONE_EVENT = ParsedEvent(is_last=True)
CHAT_CHUNKS = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]},
               {"choices": [{"delta": {"content": "é"}}]}, {"choices": [{"delta": {}, "finish_reason": "length"}]},
               {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 7}}]


def make_event_stream(events) -> bytes:
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return b": ping\n\n" + stream + b"data: [DONE]\n\n"


def parse_stream(dialect: str, data: bytes, chunk_size: int) -> list[ParsedEvent]:
    reader = DIALECTS[dialect].parse_event
    assert reader is not None
    events = EventStreamParser(reader)
    return [part for at in range(0, len(data), chunk_size) for part in events.feed(data[at:at + chunk_size])]


@given(st.integers(1, 400))
def test_events_are_parsed_however_they_are_split(size: int) -> None:
    assert parse_stream("tgi", make_event_stream(TGI_EVENTS),
                        size) == [ParsedEvent(has_tokens=True),
                                  ParsedEvent(has_tokens=True, num_tokens=2, prompt_tokens=7, is_last=True), DONE_EVENT]
    assert parse_stream("openai-chat", make_event_stream(CHAT_CHUNKS),
                        size) == [ParsedEvent(), ParsedEvent(has_tokens=True), ParsedEvent(is_last=True),
                                  ParsedEvent(num_tokens=2, prompt_tokens=7), DONE_EVENT]


def test_completion_event_reports_whether_it_has_text() -> None:
    [part, last, _] = parse_stream("openai",
                                   make_event_stream([{"choices": [{"text": "a"}]}, {"choices": [{"text": ""}]}]), 99)
    assert (part.has_tokens, last.has_tokens) == (True, False)


def test_stream_error_is_parsed() -> None:
    assert parse_stream("tgi", make_event_stream([{"error": "too much", "error_type": "overloaded"}]),
                        99)[0].error == "too much"
    assert parse_stream("openai", make_event_stream([{"error": {"message": "too much", "code": 429}}]),
                        99)[0].error == "too much"


def test_null_fields_count_as_missing() -> None:
    assert parse_stream("openai", make_event_stream([{"choices": None, "error": None, "usage": None}]),
                        99) == [ParsedEvent(), DONE_EVENT]
    assert parse_stream("tgi", make_event_stream([{"token": {}, "error": None, "details": None}]),
                        99) == [ParsedEvent(has_tokens=True), DONE_EVENT]


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning", "tool_calls"])
def test_every_chat_delta_field_counts_as_output(field: str) -> None:
    assert parse_stream("openai-chat", make_event_stream([{"choices": [{"delta": {field: "a"}}]}]), 99)[0].has_tokens


def test_each_dialect_has_its_own_request_body() -> None:
    bodies = {name: dialect.make_body(BENCH_REQUEST, RequestOptions("a-model", {"top_p": 0.5}))
              for name, dialect in DIALECTS.items()}
    assert bodies["tgi"] == {"inputs": "a prompt", "parameters": {
        "max_new_tokens": 25, "details": True, "top_p": 0.5, "adapter_id": "org/kind", "ignore_eos_token": True}}
    assert bodies["lorax"] == bodies["tgi"]
    assert bodies["openai"] == {
        "prompt": "a prompt", "max_tokens": 25, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "top_p": 0.5, "model": "org/kind", "ignore_eos": True}
    assert bodies["openai-chat"]["messages"] == [{"role": "user", "content": "a prompt"}]
    assert bodies["batching"] == {"prompt": "a prompt", "num_tokens": 25}


def test_model_is_named_where_no_adapter_is() -> None:
    assert DIALECTS["openai"].make_body(PlannedRequest(0, "a", 1),
                                        RequestOptions("a-model", ignore_eos=False))["model"] == "a-model"


@pytest.mark.parametrize("answer", [
    {"error": "why", "error_type": "x"}, {"error": {"message": "why"}}, {"message": "why"}, "why"])
def test_errors_are_read_in_several_shapes(answer) -> None:
    assert get_error_message(answer) == "why"
