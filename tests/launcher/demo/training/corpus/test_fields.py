"""Tests of the fields of JSON objects."""

import pytest

from launcher.demo.training.corpus.asking import parted, slots_of
from launcher.demo.training.corpus.fields import FIELDS, INNER, LISTS, SENTENCES, SUBJECTS
from launcher.demo.training.corpus.values import KINDS


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_names_fields_that_have_a_kind(sentence: str) -> None:
    said, meant = parted(sentence)
    assert {*slots_of(said), *meant} <= FIELDS.keys()
    assert not meant.keys() & set(slots_of(said))


def test_every_field_has_a_kind_of_value() -> None:
    assert set(FIELDS.values()) <= KINDS.keys()
    assert {name for fields in (*SUBJECTS.values(), *INNER.values()) for name in fields} <= FIELDS.keys()


def test_lists_are_long_enough() -> None:
    assert min(map(len, LISTS.values())) >= 5
