"""Definitions read well after "A zebra is"."""

from launcher.demo.training.corpus.definitions import DEFINITIONS


def test_a_definition_goes_on_with_an_article_or_a_name_for_one() -> None:
    assert [text for text in DEFINITIONS.values() if text.split()[0] not in ("a", "an", "the")] == []


def test_nothing_is_defined_by_itself() -> None:
    assert [word for word, text in DEFINITIONS.items() if word in text.split()] == []


def test_definitions_are_short() -> None:
    assert max(len(text.split()) for text in DEFINITIONS.values()) <= 12
