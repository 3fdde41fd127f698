"""Tests that every answer is JSON, with the values of the request."""

import json
from collections.abc import Iterator

import pytest
from support.corpus_checks import (
    draw_conversations,
    find_flawed_lines,
    is_deterministic,
    iter_questions_and_answers,
    join_prompt_texts,
)

from launcher.demo.training.conversation import DocumentMaker
from launcher.demo.training.corpus import json_answers
from launcher.demo.training.corpus.json_answers import WEIGHTED_MAKERS

COPYING_MAKERS = (json_answers.make_object_conversation, json_answers.make_nested_object_conversation,
                  json_answers.make_extraction_conversation, json_answers.make_schema_conversation,
                  json_answers.make_given_list_conversation, json_answers.make_object_list_conversation,
                  json_answers.make_object_edit_conversation)


def iter_leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from iter_leaves(inner)
    else:
        yield value


@pytest.mark.parametrize("maker", [*WEIGHTED_MAKERS, json_answers.make_json_document])
def test_texts_are_clean_and_repeatable(maker: DocumentMaker) -> None:
    assert find_flawed_lines(maker) == []
    assert is_deterministic(maker)


@pytest.mark.parametrize("maker", WEIGHTED_MAKERS)
def test_answers_are_json_in_one_style(maker: DocumentMaker) -> None:
    assert [answer for _, answer in iter_questions_and_answers(maker) if json.dumps(json.loads(answer)) != answer] == []


@pytest.mark.parametrize("maker", COPYING_MAKERS)
def test_values_are_copied_from_the_request(maker: DocumentMaker) -> None:
    for talk in draw_conversations(maker):
        prompt = join_prompt_texts(talk.messages)
        values = list(iter_leaves(json.loads(talk.messages[-1]["content"])))
        assert [value for value in values if not isinstance(value, bool | None) and str(value) not in prompt] == []


def test_fields_follow_the_order_of_the_request() -> None:
    for question, answer in iter_questions_and_answers(json_answers.make_object_conversation):
        fields = list(json.loads(answer))
        assert [question.index(field) for field in fields[:1]] <= [question.index(field) for field in fields[-1:]]


def test_objects_can_be_nested() -> None:
    for _, answer in iter_questions_and_answers(json_answers.make_nested_object_conversation):
        assert isinstance(list(json.loads(answer).values())[-1], dict)


def test_answers_match_the_requested_schema() -> None:
    for talk in draw_conversations(json_answers.make_schema_conversation):
        prompt = join_prompt_texts(talk.messages)
        schema, _ = json.JSONDecoder().raw_decode(prompt[prompt.index("{"):])
        answer = json.loads(talk.messages[-1]["content"])
        assert set(schema["required"]) <= answer.keys() <= schema["properties"].keys()


def test_lists_have_the_requested_length() -> None:
    for question, answer in iter_questions_and_answers(json_answers.make_example_list_conversation):
        number = len(json.loads(answer))
        assert str(number) in question or json_answers.write_number_in_words(number) in question.lower()


def test_number_ranges_have_no_gaps() -> None:
    for question, answer in iter_questions_and_answers(json_answers.make_number_range_conversation):
        numbers = json.loads(answer)
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert str(numbers[0]) in question


def test_second_turn_changes_one_field() -> None:
    exchanges = list(iter_questions_and_answers(json_answers.make_object_edit_conversation))
    for (_, before), (_, after) in zip(exchanges[::2], exchanges[1::2], strict=True):
        assert len(set(json.loads(before).items()) ^ set(json.loads(after).items())) in {1, 2}
