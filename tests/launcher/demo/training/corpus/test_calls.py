"""Tests that every tool call obeys the offered schema, with the values of the request."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.corpus_checks import asked_text, flaws, is_repeatable, talks, texts

from launcher.demo.training.corpus import calls
from launcher.demo.training.corpus.calls import ERRANDS, MAKERS
from launcher.demo.training.judge import Call, fault_of
from launcher.demo.training.talk import Maker, Message, Talk


def called(talk: Talk) -> Iterator[Call]:
    for message in talk.messages:
        for item in message.get("tool_calls", ()):
            yield Call(item["function"]["name"], item["function"]["arguments"])


def written(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def vars_of(call: Call) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


def roles(talk: Talk) -> list[str]:
    return [message["role"] for message in talk.messages if message["role"] != "system"]


@pytest.mark.parametrize("maker", [*MAKERS, calls.calls])
def test_texts_are_clean_and_repeatable(maker: Maker) -> None:
    assert [line for line in flaws(maker) if "a:" not in line] == []
    assert is_repeatable(maker)


@pytest.mark.parametrize("maker", MAKERS)
def test_every_call_obeys_its_schema(maker: Maker) -> None:
    faults = [fault_of(call, talk.tools) for talk in talks(maker) for call in called(talk)]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("maker", MAKERS)
def test_values_are_copied_from_the_request(maker: Maker) -> None:
    for talk in talks(maker):
        asked = asked_text(talk.messages)
        values = [value for call in called(talk) for value in call.arguments.values() if not isinstance(value, bool)]
        assert [text for value in values for text in written(value) if text not in asked] == []


@pytest.mark.parametrize("maker", MAKERS)
def test_talks_are_short_and_offer_one_to_four_tools(maker: Maker) -> None:
    for talk in talks(maker):
        names = [tool["function"]["name"] for tool in talk.tools]
        assert 1 <= len(names) == len(set(names)) <= 4
        assert len("".join(texts(talk)) + json.dumps([[vars_of(call) for call in called(talk)], *talk.tools])) < 1400


@pytest.mark.parametrize(("maker", "wanted"), [
    (calls.called, ["user", "assistant"]), (calls.answered, ["user", "assistant", "tool", "assistant"]),
    (calls.followed, ["user", "assistant", "tool", "assistant", "user", "assistant"]),
    (calls.unsuited, ["user", "assistant"])])
def test_talks_take_their_turns(maker: Maker, wanted: list[str]) -> None:
    assert all(roles(talk) == wanted for talk in talks(maker))


def test_two_calls_are_made_at_once() -> None:
    assert {len(list(called(talk))) for talk in talks(calls.twice)} == {2}


def test_who_needs_no_tool_or_has_none_calls_none() -> None:
    for maker in (calls.unsuited, calls.needless):
        assert not any(call for talk in talks(maker) for call in called(talk))


def test_what_is_missing_is_asked_for_before_the_call() -> None:
    for talk in talks(calls.missing):
        answers: list[Message] = [message for message in talk.messages if message["role"] == "assistant"]
        assert answers[0]["content"].endswith("?")
        assert "tool_calls" not in answers[0]
        assert len(answers) == 1 or "tool_calls" in answers[1]


def test_a_tool_is_not_offered_where_none_fits() -> None:
    for talk in talks(calls.unsuited):
        thought = talk.messages[-1]["content"]
        fitting = {errand.name for errand in ERRANDS if f"wants me to {calls.small(errand.about)}." in thought}
        assert not fitting & {tool["function"]["name"] for tool in talk.tools}


def test_a_fifth_of_the_talks_show_what_was_thought() -> None:
    found = talks(calls.calls, 600)
    thinking = [talk for talk in found if talk.thinks]
    assert 0.12 < len(thinking) / len(found) < 0.24
    assert all(message["content"].startswith("<think>\n") for talk in thinking for message in talk.messages
               if message["role"] == "assistant")
    assert not any("<think>" in text for talk in found if not talk.thinks for text in texts(talk))
