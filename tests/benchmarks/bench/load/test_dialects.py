"""Tests of benchmarks/bench/load/dialects.py."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.dialects import DIALECTS, Events, Options, Part, error_of
from benchmarks.bench.load.record import Ask

ASK = Ask(3, "a prompt", 25, adapter="org/kind")
TGI = [{"index": 1, "token": {"id": 5, "text": "é"}, "generated_text": None, "details": None},
       {"index": 2, "token": {"id": 6, "text": "b"}, "generated_text": "éb",
        "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 7, "seed": None}}]
DONE = Part(is_last=True)
CHAT = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}, {"choices": [{"delta": {"content": "é"}}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 7}}]


def stream(events) -> bytes:
    told = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return b": ping\n\n" + told + b"data: [DONE]\n\n"


def read(dialect: str, data: bytes, size: int) -> list[Part]:
    reader = DIALECTS[dialect].read
    assert reader is not None
    events = Events(reader)
    return [part for at in range(0, len(data), size) for part in events.heard(data[at:at + size])]


@given(st.integers(1, 400))
def test_events_are_read_however_they_are_cut(size: int) -> None:
    assert read("tgi", stream(TGI), size) == [
        Part(brings=True), Part(brings=True, num_tokens=2, prompt_tokens=7, is_last=True), DONE]
    assert read("openai-chat", stream(CHAT), size) == [
        Part(), Part(brings=True), Part(is_last=True), Part(num_tokens=2, prompt_tokens=7), DONE]


def test_a_completion_brings_text() -> None:
    [part, last, _] = read("openai", stream([{"choices": [{"text": "a"}]}, {"choices": [{"text": ""}]}]), 99)
    assert (part.brings, last.brings) == (True, False)


def test_an_error_in_a_stream_is_read() -> None:
    assert read("tgi", stream([{"error": "too much", "error_type": "overloaded"}]), 99)[0].error == "too much"
    assert read("openai", stream([{"error": {"message": "too much", "code": 429}}]), 99)[0].error == "too much"


def test_what_is_null_is_not_there() -> None:
    assert read("openai", stream([{"choices": None, "error": None, "usage": None}]), 99) == [Part(), DONE]
    assert read("tgi", stream([{"token": {}, "error": None, "details": None}]), 99) == [Part(brings=True), DONE]


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning", "tool_calls"])
def test_whatever_a_chat_says_counts(field: str) -> None:
    assert read("openai-chat", stream([{"choices": [{"delta": {field: "a"}}]}]), 99)[0].brings


def test_each_dialect_asks_for_so_many_tokens_in_its_own_words() -> None:
    bodies = {name: dialect.body(ASK, Options("a-model", {"top_p": 0.5})) for name, dialect in DIALECTS.items()}
    assert bodies["tgi"] == {"inputs": "a prompt", "parameters": {
        "max_new_tokens": 25, "details": True, "top_p": 0.5, "adapter_id": "org/kind"}}
    assert bodies["lorax"]["parameters"]["ignore_eos_token"] is True
    assert bodies["openai"] == {
        "prompt": "a prompt", "max_tokens": 25, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "top_p": 0.5, "model": "org/kind", "ignore_eos": True}
    assert bodies["openai-chat"]["messages"] == [{"role": "user", "content": "a prompt"}]
    assert bodies["batching"] == {"prompt": "a prompt", "num_tokens": 25}


def test_a_model_is_named_where_no_adapter_is() -> None:
    assert DIALECTS["openai"].body(Ask(0, "a", 1), Options("a-model", ignore_eos=False))["model"] == "a-model"


@pytest.mark.parametrize("answer", [
    {"error": "why", "error_type": "x"}, {"error": {"message": "why"}}, {"message": "why"}, "why"])
def test_errors_are_told_in_several_shapes(answer) -> None:
    assert error_of(answer) == "why"
