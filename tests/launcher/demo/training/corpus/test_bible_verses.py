"""Tests that conversations made of verses contain the requested word and no violent verse."""

from random import Random

import pytest
from support.prose_checks import draw_conversations, draw_items

from launcher.demo.training.corpus.bible_verses import (
    make_passage_maker,
    make_verse_question_maker,
    select_gentle_verses,
)
from launcher.demo.training.corpus.sources.scripture import BibleVerse

LIGHT_VERSE = BibleVerse("Psa", 4, 6, "Lord, lift thou up the light of thy countenance upon us.")
SALT_VERSE = BibleVerse("Mark", 9, 50, "Salt is good, and the salt shall have its savour.")
WISDOM_VERSE = BibleVerse("Prv", 8, 11, "For wisdom is better than rubies and all things.")
VIOLENT_VERSE = BibleVerse("Psa", 3, 7, "For thou hast smitten all mine enemies upon the cheek bone.")
ALL_VERSES = [LIGHT_VERSE, SALT_VERSE, WISDOM_VERSE, VIOLENT_VERSE]


def test_violent_verses_are_left_out() -> None:
    assert select_gentle_verses(ALL_VERSES) == [LIGHT_VERSE, SALT_VERSE, WISDOM_VERSE]


@pytest.mark.parametrize("verse", [
    BibleVerse("Num", 1, 1, "And the Lord spake unto Moses in the wilderness."), BibleVerse("Psa", 1, 1, "Too short."),
    BibleVerse("Psa", 1, 2, "A verse that goes on in the next one, as many do:")])
def test_lists_and_broken_sentences_are_left_out(verse: BibleVerse) -> None:
    assert select_gentle_verses([verse]) == []


def test_answer_contains_the_requested_word() -> None:
    for talk in draw_conversations(make_verse_question_maker(ALL_VERSES)):
        question, answer = (message["content"].lower() for message in talk.messages)
        for topic in ("light", "salt", "wisdom"):
            assert topic not in question or topic in answer


def test_same_seed_gives_the_same_talks() -> None:
    assert draw_items(make_verse_question_maker(ALL_VERSES)) == draw_items(make_verse_question_maker(ALL_VERSES))


def test_passages_stay_in_one_chapter_and_in_order() -> None:
    chapter = [BibleVerse("Psa", 1, number, f"And this is the verse of number {number}.") for number in range(1, 8)]
    text = make_passage_maker([*chapter, SALT_VERSE], num_verses=5)(Random(2))
    assert isinstance(text, str)
    assert text in (" ".join(verse.text for verse in part) for part in (chapter[:5], chapter[5:], [SALT_VERSE]))
