"""Tests of the tables of JSON fields and of the sentences about them."""

import pytest

from launcher.demo.training.corpus.json_templates import (
    FIELDS_BY_NESTED_OBJECT,
    FIELDS_BY_SUBJECT,
    KINDS_BY_FIELD,
    SENTENCE_TEMPLATES,
    WORD_LISTS,
)
from launcher.demo.training.corpus.request_variations import list_slots, split_implied_values
from launcher.demo.training.corpus.values import VALUE_KINDS


@pytest.mark.parametrize("sentence", SENTENCE_TEMPLATES)
def test_sentence_templates_use_known_fields(sentence: str) -> None:
    template, implied_values = split_implied_values(sentence)
    assert {*list_slots(template), *implied_values} <= KINDS_BY_FIELD.keys()
    assert not implied_values.keys() & set(list_slots(template))


def test_every_field_has_a_kind_of_value() -> None:
    assert set(KINDS_BY_FIELD.values()) <= VALUE_KINDS.keys()
    assert {name for fields in (*FIELDS_BY_SUBJECT.values(), *FIELDS_BY_NESTED_OBJECT.values())
            for name in fields} <= KINDS_BY_FIELD.keys()


def test_lists_are_long_enough() -> None:
    assert min(map(len, WORD_LISTS.values())) >= 5
