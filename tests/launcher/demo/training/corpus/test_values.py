"""Values of every kind."""

from random import Random

import pytest

from launcher.demo.training.corpus.values import KINDS, NAMES, made_up
from launcher.demo.training.judge import fits


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_obeys_the_schema_of_its_kind(kind: str) -> None:
    rng = Random(1)
    values = [KINDS[kind].draw(rng) for _ in range(50)]
    assert all(fits(value, KINDS[kind].schema) for value in values)
    assert len({str(value) for value in values}) > 1


def test_made_up_words_are_many_and_plain() -> None:
    rng = Random(1)
    words = {made_up(rng) for _ in range(1000)}
    assert len(words) > 500
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)


def test_some_names_are_made_up() -> None:
    rng = Random(1)
    known = [KINDS["name"].draw(rng) in NAMES for _ in range(300)]
    assert 0.7 < sum(known) / len(known) < 0.9
