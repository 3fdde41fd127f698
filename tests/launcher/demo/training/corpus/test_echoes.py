"""Tests of answers made of the words of the question."""

from random import Random

import pytest
from support.prose_checks import faults, turns

from launcher.demo.training.corpus.echoes import copies, lowered, remembered, unknown_of
from launcher.demo.training.corpus.turns import Turns


@pytest.mark.parametrize("kind", [copies, lowered, remembered, unknown_of])
def test_turns_are_written_without_faults(kind: Turns) -> None:
    texts = [text for turn in turns(kind, 400) for text in turn]
    assert [(text, faults(text)) for text in texts if text and faults(text)] == []


def test_the_same_seed_copies_the_same() -> None:
    assert turns(copies) == turns(copies)


def test_a_copy_is_made_of_the_words_of_the_question() -> None:
    for turn in turns(copies, 400):
        assert all(word in turn.question.lower() for word in turn.answer.lower().split()), turn


def test_capitals_are_asked_for_by_name() -> None:
    for turn in turns(copies, 400):
        if "upper case" in turn.question.lower() or "capital" in turn.question:
            assert turn.answer == turn.answer.upper()


def test_small_letters_are_made_of_capitals() -> None:
    for turn in turns(lowered):
        assert turn.answer == turn.answer.lower()
        assert turn.answer.upper() in turn.question


def test_what_was_said_is_remembered() -> None:
    for turn in turns(remembered, 300):
        if turn.answer.startswith("Your name is "):
            assert turn.question.lower().rstrip("?").split()[-1] in ("name", "i", "called")
    named = [turn for turn in turns(remembered, 300) if "nice to meet you" in turn.answer]
    assert named
    assert all(turn.answer.split("!")[0].removeprefix("Hello, ") in turn.question for turn in named)


def test_what_was_said_is_asked_for_later() -> None:
    for seed in range(100):
        first, *_, last = remembered(Random(seed))
        assert last.brief.rstrip(".").lower().removeprefix("a ").removeprefix("an ") in " ".join(
            turn.question for turn in remembered(Random(seed))).lower()
        assert first.brief == ""


def test_what_was_never_said_is_not_known() -> None:
    assert all("not told me" in turn.answer for turn in turns(unknown_of))
