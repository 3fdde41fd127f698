"""Tests of the generators of random values of each kind."""

from random import Random

import pytest

from launcher.demo.training.corpus.values import PERSON_NAMES, VALUE_KINDS, invent_word
from launcher.demo.training.evaluation_cases import is_value_valid


@pytest.mark.parametrize("kind", VALUE_KINDS)
def test_value_matches_the_schema_of_its_kind(kind: str) -> None:
    rng = Random(1)
    values = [VALUE_KINDS[kind].draw(rng) for _ in range(50)]
    assert all(is_value_valid(value, VALUE_KINDS[kind].schema) for value in values)
    assert len({str(value) for value in values}) > 1


def test_made_up_words_are_varied_and_plain() -> None:
    rng = Random(1)
    words = {invent_word(rng) for _ in range(1000)}
    assert len(words) > 500
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)


def test_some_names_are_made_up() -> None:
    rng = Random(1)
    known = [VALUE_KINDS["name"].draw(rng) in PERSON_NAMES for _ in range(300)]
    assert 0.7 < sum(known) / len(known) < 0.9
