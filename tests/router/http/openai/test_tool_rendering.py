"""Answers with reasoning and tool calls as OpenAI's JSON, whole and in chunks."""

import json

import pytest
from support.expected_streams import lived

from router.engine.stream import FinishedEvent, TokenEvent
from router.http.openai.rendering import Extras, Label
from router.http.openai.tool_rendering import SpokenChunks, spoken_json
from router.http.transport.collect import Answer
from router.request import FinishReason, Request
from router.text.response_parser import HERMES, Reader
from router.validation.validator import Choice

LABEL = Label("chatcmpl-1", 1_700_000_000, "loom", "0.1.0-native")
END = TokenEvent(256, "<|im_end|>", -0.5, True)
CALL = '<tool_call>\n{"name": "stop", "arguments": {"at": "\u00e9"}}\n</tool_call>'
TOLD = {"type": "function", "function": {"description": None, "name": "stop", "arguments": '{"at": "\u00e9"}'}}


def tokens(text, size=3):
    return [TokenEvent(1, text[place:place + size], -0.5, False) for place in range(0, len(text), size)]


def end(text, reason=FinishReason.END_TOKEN):
    return FinishedEvent(reason, text, len(tokens(text)) + 1, lived())


def whole(text, reason=FinishReason.END_TOKEN, prompt="", **extras):
    said = [*tokens(text), *[END] * (reason is FinishReason.END_TOKEN)]
    answer = Answer(Choice(Request("0", (1, 2), 5), None), said, [], end(text, reason))
    [choice] = json.loads(spoken_json(LABEL, answer, Extras(**extras), Reader(HERMES, prompt)))["choices"]
    return choice


def streamed(text, reason=FinishReason.END_TOKEN, prompt="", **extras):
    chunks = SpokenChunks(LABEL, 2, Extras(**extras), Reader(HERMES, prompt))
    said = [*tokens(text), *[END] * (reason is FinishReason.END_TOKEN)]
    bursts = [chunks.burst([token]) for token in said[:-1]] + [chunks.burst([said[-1], end(text, reason)])]
    *lines, done, rest = b"".join(bursts).decode().split("\n\n")
    assert (done, rest, chunks.ended) == ("data: [DONE]", "", True)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def deltas(chunks):
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


def without_id(call):
    assert call["id"].startswith("call_")
    return {key: value for key, value in call.items() if key != "id"}


def test_text_is_the_content():
    choice = whole("Hello, you.")
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": "Hello, you."}, "stop")


def test_a_call_is_told_without_content():
    choice = whole(CALL)
    assert choice["finish_reason"] == "tool_calls"
    assert [without_id(call) for call in choice["message"].pop("tool_calls")] == [TOLD]
    assert choice["message"] == {"role": "assistant"}


def test_text_before_calls_is_told_as_well():
    choice = whole(f"Well.\n{CALL}\n{CALL}")
    assert choice["message"]["content"] == "Well."
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2


@pytest.mark.parametrize(("prompt", "text"), [
    ("", "<think>\nHm.\n</think>\nHello."), ("<|im_start|>assistant\n<think>\n", "Hm.\n</think>\nHello.")])
def test_a_thought_is_told_apart_under_both_of_its_names(prompt, text):
    message = whole(text, prompt=prompt)["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("Hello.", "Hm.", "Hm.")


def test_a_call_that_was_cut_off_is_text_and_ends_by_its_length():
    choice = whole(CALL[:30], FinishReason.LENGTH)
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL[:30], "length")
    assert "".join(delta.get("content", "") for delta in deltas(streamed(CALL[:30], FinishReason.LENGTH))) == CALL[:30]


def test_a_stream_tells_text_as_it_comes_and_a_call_in_one_piece():
    chunks = streamed(f"Well.\n{CALL}\n{CALL}")
    told = deltas(chunks)
    assert [delta.get("role") for delta in told] == ["assistant", *[None] * (len(told) - 1)]
    assert "".join(delta.get("content", "") for delta in told) == "Well."
    calls = [call for delta in told for call in delta.get("tool_calls", ())]
    assert [without_id(call) for call in calls] == [{"index": 0, **TOLD}, {"index": 1, **TOLD}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [*[None] * (len(chunks) - 1), "tool_calls"]


def test_a_stream_without_calls_ends_as_others_do():
    chunks = streamed("Hello, you.", usage=True)
    assert "".join(delta.get("content", "") for delta in deltas(chunks)) == "Hello, you."
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 5)


def test_logprobs_are_told_of_every_token_also_of_those_of_a_call():
    for chunks in (streamed(CALL, logprobs=True), streamed("Hello.", logprobs=True)):
        told = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert told[-1]["token"] == "<|im_end|>"
    assert "".join(entry["token"] for entry in whole(CALL, logprobs=True)["logprobs"]["content"]) == f"{CALL}<|im_end|>"


@pytest.mark.parametrize("text", ["Hello, you.", CALL, f"Well.{CALL}"])
def test_an_end_token_that_the_shape_does_not_know_is_no_text(text):
    """Regression: with Hermes' template and the model's own end token, that token was sent as content."""
    end_token = TokenEvent(2, "<|the end|>", -0.5, True)
    said = [*tokens(text), end_token]
    told = FinishedEvent(FinishReason.END_TOKEN, text, len(said), lived())
    answer = Answer(Choice(Request("0", (1, 2), 5), None), said, [], told)
    assert "the end" not in spoken_json(LABEL, answer, Extras(), Reader(HERMES, ""))
    chunks = SpokenChunks(LABEL, 2, Extras(), Reader(HERMES, ""))
    assert b"the end" not in chunks.burst([*said, told])
