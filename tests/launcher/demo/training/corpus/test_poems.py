"""Tests of poems: each has four lines and is about the requested subject."""

import re
from random import Random

from support.prose_checks import faults, turns

from launcher.demo.training.corpus.poems import ABOUT_SOMEBODY, ABOUT_THINGS, CLOSINGS, plain, poems


def test_the_same_seed_writes_the_same_poems() -> None:
    assert turns(poems) == turns(poems)
    assert plain(Random(1)) == plain(Random(1))


def test_poems_are_written_without_faults() -> None:
    texts = [text for turn in turns(poems) for text in turn[:2]]
    assert [(text, faults(text)) for text in texts if faults(text)] == []


def test_a_poem_has_four_lines_that_begin_with_capitals() -> None:
    for turn in turns(poems):
        lines = turn.answer.split("\n")
        assert len(lines) == 4
        assert all(line[0].isupper() for line in lines)


def test_a_poem_is_about_what_was_asked_for() -> None:
    for turn in turns(poems):
        about = re.search(r"about (?:an?|the) ([a-z ]+)", turn.question)
        if about:
            assert about[1] in turn.answer.lower()


def test_pairs_of_lines_are_pairs() -> None:
    assert {pair.count("\n") for pair in (*ABOUT_SOMEBODY, *ABOUT_THINGS, *CLOSINGS)} == {1}


def test_a_poem_by_itself_has_a_title_that_names_it() -> None:
    title, _, lines = plain(Random(2)).partition("\n\n")
    assert title.split()[-1].lower() in lines.lower()
