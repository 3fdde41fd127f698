"""Tests that the word lists have no duplicates and no contradictions."""

import pytest

from launcher.demo.training.corpus import words

WORD_LISTS = {name: value for name, value in vars(words).items() if name.isupper()}


@pytest.mark.parametrize("name", WORD_LISTS)
def test_word_lists_are_ascii_without_stray_spaces(name: str) -> None:
    flat = str(WORD_LISTS[name])
    assert flat.isascii()
    assert "  " not in flat


@pytest.mark.parametrize("name", [name for name, value in WORD_LISTS.items() if isinstance(value, tuple)])
def test_word_lists_have_no_duplicates(name: str) -> None:
    assert len(WORD_LISTS[name]) == len(set(WORD_LISTS[name]))


def test_girl_and_boy_names_do_not_overlap() -> None:
    assert set(words.GIRL_NAMES).isdisjoint(words.BOY_NAMES)


def test_no_word_has_two_opposites() -> None:
    assert set(words.OPPOSITES).isdisjoint(words.OPPOSITES.values())
    assert len(set(words.OPPOSITES.values())) == len(words.OPPOSITES)
