"""Tests of poems: each has four lines and is about the requested subject."""

import re
from random import Random

from support.prose_checks import draw_turns, find_text_faults

from launcher.demo.training.corpus.poems import (
    CHARACTER_POEM_OPENINGS,
    POEM_CLOSINGS,
    THING_POEM_OPENINGS,
    make_poem_text,
    make_poem_turns,
)


def test_same_seed_gives_the_same_poems() -> None:
    assert draw_turns(make_poem_turns) == draw_turns(make_poem_turns)
    assert make_poem_text(Random(1)) == make_poem_text(Random(1))


def test_poems_are_written_without_faults() -> None:
    texts = [text for turn in draw_turns(make_poem_turns) for text in turn[:2]]
    assert [(text, find_text_faults(text)) for text in texts if find_text_faults(text)] == []


def test_poem_has_four_capitalized_lines() -> None:
    for turn in draw_turns(make_poem_turns):
        lines = turn.answer.split("\n")
        assert len(lines) == 4
        assert all(line[0].isupper() for line in lines)


def test_poem_is_about_the_requested_subject() -> None:
    for turn in draw_turns(make_poem_turns):
        match = re.search(r"about (?:an?|the) ([a-z ]+)", turn.question)
        if match:
            assert match[1] in turn.answer.lower()


def test_line_pairs_have_two_lines() -> None:
    assert {pair.count("\n") for pair in (*CHARACTER_POEM_OPENINGS, *THING_POEM_OPENINGS, *POEM_CLOSINGS)} == {1}


def test_plain_poem_has_a_title_from_its_text() -> None:
    title, _, lines = make_poem_text(Random(2)).partition("\n\n")
    assert title.split()[-1].lower() in lines.lower()
