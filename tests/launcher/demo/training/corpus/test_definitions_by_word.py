"""Tests that definitions read well after "A zebra is"."""

from launcher.demo.training.corpus.definitions_by_word import DEFINITIONS_BY_WORD


def test_definitions_start_with_an_article() -> None:
    assert [text for text in DEFINITIONS_BY_WORD.values() if text.split()[0] not in ("a", "an", "the")] == []


def test_no_word_is_defined_by_itself() -> None:
    assert [word for word, text in DEFINITIONS_BY_WORD.items() if word in text.split()] == []


def test_definitions_are_short() -> None:
    assert max(len(text.split()) for text in DEFINITIONS_BY_WORD.values()) <= 12
