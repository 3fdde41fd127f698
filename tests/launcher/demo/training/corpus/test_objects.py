"""Tests that every answer is JSON, with the values of the request."""

import json
from collections.abc import Iterator

import pytest
from support.corpus_checks import asked_text, flaws, is_repeatable, talks, turns

from launcher.demo.training.corpus import objects
from launcher.demo.training.corpus.objects import MAKERS
from launcher.demo.training.talk import Maker

COPYING = (objects.given, objects.nested, objects.taken, objects.fitting, objects.list_held, objects.of_several,
           objects.changed)


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    else:
        yield value


@pytest.mark.parametrize("maker", [*MAKERS, objects.objects])
def test_texts_are_clean_and_repeatable(maker: Maker) -> None:
    assert flaws(maker) == []
    assert is_repeatable(maker)


@pytest.mark.parametrize("maker", MAKERS)
def test_answers_are_json_in_one_style(maker: Maker) -> None:
    assert [answer for _, answer in turns(maker) if json.dumps(json.loads(answer)) != answer] == []


@pytest.mark.parametrize("maker", COPYING)
def test_values_are_copied_from_the_request(maker: Maker) -> None:
    for talk in talks(maker):
        asked = asked_text(talk.messages)
        values = list(leaves(json.loads(talk.messages[-1]["content"])))
        assert [value for value in values if not isinstance(value, bool | None) and str(value) not in asked] == []


def test_fields_come_in_the_order_in_which_they_are_asked_for() -> None:
    for question, answer in turns(objects.given):
        fields = list(json.loads(answer))
        assert [question.index(field) for field in fields[:1]] <= [question.index(field) for field in fields[-1:]]


def test_an_object_may_hold_another() -> None:
    for _, answer in turns(objects.nested):
        assert isinstance(list(json.loads(answer).values())[-1], dict)


def test_a_schema_is_obeyed() -> None:
    for talk in talks(objects.fitting):
        asked = asked_text(talk.messages)
        schema, _ = json.JSONDecoder().raw_decode(asked[asked.index("{"):])
        answer = json.loads(talk.messages[-1]["content"])
        assert set(schema["required"]) <= answer.keys() <= schema["properties"].keys()


def test_lists_have_the_wanted_length() -> None:
    for question, answer in turns(objects.list_of):
        number = len(json.loads(answer))
        assert str(number) in question or objects.in_words(number) in question.lower()


def test_runs_of_numbers_have_no_gap() -> None:
    for question, answer in turns(objects.list_run):
        numbers = json.loads(answer)
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert str(numbers[0]) in question


def test_a_second_turn_changes_one_field() -> None:
    found = list(turns(objects.changed))
    for (_, before), (_, after) in zip(found[::2], found[1::2], strict=True):
        assert len(set(json.loads(before).items()) ^ set(json.loads(after).items())) in {1, 2}
