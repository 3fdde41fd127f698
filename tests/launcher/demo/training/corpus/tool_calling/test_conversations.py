"""Tests that every tool call obeys the offered schema, with the values of the request."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.corpus_checks import (
    draw_conversations,
    find_flawed_lines,
    get_message_texts,
    is_deterministic,
    join_prompt_texts,
)

from launcher.demo.training.conversation import Conversation, DocumentMaker, Message
from launcher.demo.training.corpus.tool_calling import conversations
from launcher.demo.training.corpus.tool_calling.conversations import TOOL_SCENARIOS, WEIGHTED_MAKERS
from launcher.demo.training.evaluation_cases import ToolCall, find_tool_call_violation


def iter_calls(talk: Conversation) -> Iterator[ToolCall]:
    for message in talk.messages:
        for item in message.get("tool_calls", ()):
            yield ToolCall(item["function"]["name"], item["function"]["arguments"])


def to_strings(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def call_to_dict(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


def get_roles(talk: Conversation) -> list[str]:
    return [message["role"] for message in talk.messages if message["role"] != "system"]


@pytest.mark.parametrize("maker", [*WEIGHTED_MAKERS, conversations.make_tool_document])
def test_texts_are_clean_and_repeatable(maker: DocumentMaker) -> None:
    assert [line for line in find_flawed_lines(maker) if "a:" not in line] == []
    assert is_deterministic(maker)


@pytest.mark.parametrize("maker", WEIGHTED_MAKERS)
def test_every_call_matches_its_schema(maker: DocumentMaker) -> None:
    faults = [find_tool_call_violation(call, talk.tools) for talk in draw_conversations(maker)
              for call in iter_calls(talk)]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("maker", WEIGHTED_MAKERS)
def test_values_are_copied_from_the_request(maker: DocumentMaker) -> None:
    for talk in draw_conversations(maker):
        prompt = join_prompt_texts(talk.messages)
        values = [value for call in iter_calls(talk) for value in call.arguments.values()
                  if not isinstance(value, bool)]
        assert [text for value in values for text in to_strings(value) if text not in prompt] == []


@pytest.mark.parametrize("maker", WEIGHTED_MAKERS)
def test_talks_are_short_and_offer_one_to_four_tools(maker: DocumentMaker) -> None:
    for talk in draw_conversations(maker):
        names = [tool["function"]["name"] for tool in talk.tools]
        assert 1 <= len(names) == len(set(names)) <= 4
        assert len("".join(get_message_texts(talk))
                   + json.dumps([[call_to_dict(call) for call in iter_calls(talk)], *talk.tools])) < 1400


@pytest.mark.parametrize(("maker", "expected_roles"),
                         [(conversations.make_call_conversation, ["user", "assistant"]),
                          (conversations.make_answered_call_conversation, ["user", "assistant", "tool", "assistant"]),
                          (conversations.make_two_requests_conversation,
                           ["user", "assistant", "tool", "assistant", "user", "assistant"]),
                          (conversations.make_no_tool_fits_conversation, ["user", "assistant"])])
def test_talks_have_the_expected_roles(maker: DocumentMaker, expected_roles: list[str]) -> None:
    assert all(get_roles(talk) == expected_roles for talk in draw_conversations(maker))


def test_two_calls_are_made_at_once() -> None:
    assert {len(list(iter_calls(talk)))
            for talk in draw_conversations(conversations.make_parallel_calls_conversation)} == {2}


def test_no_tool_is_called_when_none_is_needed_or_offered() -> None:
    for maker in (conversations.make_no_tool_fits_conversation, conversations.make_no_tool_needed_conversation):
        assert not any(call for talk in draw_conversations(maker) for call in iter_calls(talk))


def test_missing_argument_is_asked_for_before_the_call() -> None:
    for talk in draw_conversations(conversations.make_missing_value_conversation):
        answers: list[Message] = [message for message in talk.messages if message["role"] == "assistant"]
        assert answers[0]["content"].endswith("?")
        assert "tool_calls" not in answers[0]
        assert len(answers) == 1 or "tool_calls" in answers[1]


def test_unsuitable_request_offers_no_fitting_tool() -> None:
    for talk in draw_conversations(conversations.make_no_tool_fits_conversation):
        reasoning = talk.messages[-1]["content"]
        fitting_tools = {scenario.tool_name for scenario in TOOL_SCENARIOS
                         if f"wants me to {conversations.lowercase_first_letter(scenario.description)}." in reasoning}
        assert not fitting_tools & {tool["function"]["name"] for tool in talk.tools}


def test_a_fifth_of_the_talks_show_thoughts() -> None:
    talks = draw_conversations(conversations.make_tool_document, 600)
    thinking = [talk for talk in talks if talk.has_reasoning]
    assert 0.12 < len(thinking) / len(talks) < 0.24
    assert all(message["content"].startswith("<think>\n") for talk in thinking for message in talk.messages
               if message["role"] == "assistant")
    assert not any("<think>" in text for talk in talks if not talk.has_reasoning for text in get_message_texts(talk))
