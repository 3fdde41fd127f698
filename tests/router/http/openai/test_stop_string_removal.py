"""Tests of stop strings that are left out of the text, streamed and whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FailedEvent, FinishedEvent, StopStringMatcher, TokenEvent
from router.errors import GenerationFailed
from router.http.openai.rendering import ChatOutputOptions, OpenAIChatStreamRenderer, ResponseMetadata
from router.http.openai.stop_string_removal import StopStringHoldback, StopStringPrefixMatcher, trim_stop_string
from router.request import FinishReason

METADATA = ResponseMetadata("chatcmpl-1", 1_700_000_000, "loom", "0.1.0-native")


@given(st.lists(st.text("ab<", max_size=5), max_size=5), st.text("ab<", min_size=1, max_size=5))
def test_matcher_finds_the_longest_end_that_begins_the_string(pieces: list[str], string: str) -> None:
    matcher, text = StopStringPrefixMatcher(string), ""
    for piece in pieces:
        length, text = matcher.feed(piece), text + piece
        assert length == max(size for size in range(len(string)) if text.endswith(string[:size]))


def test_what_is_held_back_can_be_flushed() -> None:
    holdback = StopStringHoldback(["</s>"])
    assert [holdback.feed(piece) for piece in ("a<", "/", "b</s")] == ["a", "", "</b"]
    assert [holdback.flush(), holdback.flush()] == ["</s", ""]


@pytest.mark.parametrize(("text", "reason", "expected"), [
    ("one two", FinishReason.STOP_STRING, "one "), ("one two", FinishReason.LENGTH, "one two"),
    ("one two", FinishReason.END_TOKEN, "one two"), ("none", FinishReason.STOP_STRING, "none")])
def test_only_the_stop_string_that_ended_the_text_is_left_out(text: str, reason: FinishReason, expected: str) -> None:
    assert trim_stop_string(FinishedEvent(reason, text, 1, make_finished_timeline()), ["wo", "two"]) == expected


@given(st.text("ab<", max_size=12), st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3), st.data())
def test_streamed_text_is_the_whole_text_up_to_the_first_stop_string(text: str, stop_strings: list[str],
                                                                     data: st.DataObject) -> None:
    """Pieces are tokens, of which the engine cuts the one in which a stop string is complete."""
    matcher, pieces, end = StopStringMatcher(tuple(stop_strings)) if stop_strings else None, list[str](), None
    rest = text
    while rest and end is None:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        end = None if matcher is None else matcher.find_match_end(rest[:size])
        rest = rest[size:]
    visible = "".join(pieces)[:end]
    reason = FinishReason.STOP_STRING if end is not None and data.draw(st.booleans()) else FinishReason.LENGTH
    final_event = FinishedEvent(reason, visible, len(pieces), make_finished_timeline(), is_stopped=end is not None)
    renderer = OpenAIChatStreamRenderer(METADATA, 0, 3, ChatOutputOptions(stop_strings_to_remove=tuple(stop_strings)))
    events = [TokenEvent(1, piece, -0.5, False) for piece in pieces]
    bursts = [renderer.render([event]) for event in events[:-1]] + [renderer.render([*events[-1:], final_event])]
    lines = b"".join(bursts).decode().removesuffix("\n\n").split("\n\n")
    streamed = "".join(json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["content"] for line in lines)
    assert streamed == trim_stop_string(final_event, stop_strings)
    chunk = json.loads(lines[-1].removeprefix("data: "))
    assert chunk["choices"][0]["finish_reason"] == ("length" if end is None else "stop")
    if end is not None:
        assert visible.startswith(streamed)
        assert visible[len(streamed):] in stop_strings


def test_text_held_back_is_sent_before_a_failure() -> None:
    renderer = OpenAIChatStreamRenderer(METADATA, 0, 3, ChatOutputOptions(stop_strings_to_remove=("12z",)))
    rendered = renderer.render([TokenEvent(1, "1", -0.5, False), TokenEvent(2, "2", -0.5, False),
                                FailedEvent(GenerationFailed("broken"))]).decode()
    assert [json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["content"]
            for line in rendered.removesuffix("\n\n").split("\n\n")] == ["", "", "12"]
