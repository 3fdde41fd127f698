"""Tests that the word lists are clean."""

import pytest

from launcher.demo.training.corpus import words

LISTS = {name: value for name, value in vars(words).items() if name.isupper()}


@pytest.mark.parametrize("name", LISTS)
def test_everything_is_ascii_and_without_stray_spaces(name: str) -> None:
    flat = str(LISTS[name])
    assert flat.isascii()
    assert "  " not in flat


@pytest.mark.parametrize("name", [name for name, value in LISTS.items() if isinstance(value, tuple)])
def test_nothing_is_listed_twice(name: str) -> None:
    if name != "LOOKS":
        assert len(LISTS[name]) == len(set(LISTS[name]))


def test_a_name_is_a_girls_or_a_boys() -> None:
    assert set(words.GIRLS).isdisjoint(words.BOYS)


def test_no_word_has_two_opposites() -> None:
    assert set(words.OPPOSITES).isdisjoint(words.OPPOSITES.values())
    assert len(set(words.OPPOSITES.values())) == len(words.OPPOSITES)
