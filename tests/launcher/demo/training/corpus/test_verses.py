"""Tests that talks made of verses contain the requested word and nothing hurtful."""

from random import Random

import pytest
from support.prose_checks import made, talks

from launcher.demo.training.corpus.scripture import Verse
from launcher.demo.training.corpus.verses import gentle, passage_maker, verse_maker

LIGHT = Verse("Psa", 4, 6, "Lord, lift thou up the light of thy countenance upon us.")
SALT = Verse("Mark", 9, 50, "Salt is good, and the salt shall have its savour.")
WISE = Verse("Prv", 8, 11, "For wisdom is better than rubies and all things.")
HARSH = Verse("Psa", 3, 7, "For thou hast smitten all mine enemies upon the cheek bone.")
ALL = [LIGHT, SALT, WISE, HARSH]


def test_verses_that_hurt_are_left_out() -> None:
    assert gentle(ALL) == [LIGHT, SALT, WISE]


@pytest.mark.parametrize("verse", [
    Verse("Num", 1, 1, "And the Lord spake unto Moses in the wilderness."), Verse("Psa", 1, 1, "Too short."),
    Verse("Psa", 1, 2, "A verse that goes on in the next one, as many do:")])
def test_lists_and_broken_sentences_are_left_out(verse: Verse) -> None:
    assert gentle([verse]) == []


def test_a_verse_has_the_word_that_is_asked_for() -> None:
    for talk in talks(verse_maker(ALL)):
        question, answer = (message["content"].lower() for message in talk.messages)
        for topic in ("light", "salt", "wisdom"):
            assert topic not in question or topic in answer


def test_the_same_seed_preaches_the_same() -> None:
    assert made(verse_maker(ALL)) == made(verse_maker(ALL))


def test_a_passage_stays_in_its_chapter_and_order() -> None:
    chapter = [Verse("Psa", 1, number, f"And this is the verse of number {number}.") for number in range(1, 8)]
    text = passage_maker([*chapter, SALT], length=5)(Random(2))
    assert isinstance(text, str)
    assert text in (" ".join(verse.text for verse in part) for part in (chapter[:5], chapter[5:], [SALT]))
