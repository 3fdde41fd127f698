"""Tests of stop strings that are left out of the text, streamed and whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.expected_streams import make_finished_timeline

from router.engine.stream import FinishedEvent, StopStringMatcher, TokenEvent
from router.http.openai.rendering import ChatOutputOptions, OpenAIChatStreamRenderer, ResponseMetadata
from router.http.openai.stop_strings import StopStringTrimmer, count_held_characters, trim_stop_string
from router.request import FinishReason

METADATA = ResponseMetadata("chatcmpl-1", 1_700_000_000, "loom", "0.1.0-native")


@pytest.mark.parametrize(("text", "stop_string", "expected"), [
    ("", "ab", 0), ("a", "ab", 1), ("ab", "ab", 0), ("xa", "ab", 1), ("aa", "aab", 2), ("aaa", "aab", 2),
    ("b", "ab", 0)])
def test_held_characters_may_begin_the_stop_string(text: str, stop_string: str, expected: int) -> None:
    assert count_held_characters(text, stop_string) == expected


def test_what_is_held_back_can_be_flushed() -> None:
    trimmer = StopStringTrimmer(["</s>"])
    assert [trimmer.feed(piece) for piece in ("a<", "/", "b</s")] == ["a", "", "</b"]
    assert [trimmer.flush(), trimmer.flush()] == ["</s", ""]


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
        end = None if matcher is None else matcher.feed(rest[:size])
        rest = rest[size:]
    visible = "".join(pieces)[:end]
    reason = FinishReason.LENGTH if end is None else FinishReason.STOP_STRING
    final_event = FinishedEvent(reason, visible, len(pieces), make_finished_timeline())
    renderer = OpenAIChatStreamRenderer(METADATA, 0, 3, ChatOutputOptions(trimmed_stop_strings=tuple(stop_strings)))
    events = [TokenEvent(1, piece, -0.5, False) for piece in pieces]
    bursts = [renderer.render([event]) for event in events[:-1]] + [renderer.render([*events[-1:], final_event])]
    lines = b"".join(bursts).decode().removesuffix("\n\n").split("\n\n")
    streamed = "".join(json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["content"] for line in lines)
    assert streamed == trim_stop_string(final_event, stop_strings)
    if end is not None:
        assert visible.startswith(streamed)
        assert visible[len(streamed):] in stop_strings
