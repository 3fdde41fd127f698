"""Tests of answers made of the words of the question."""

from random import Random

import pytest
from support.prose_checks import draw_turns, find_text_faults

from launcher.demo.training.corpus.conversation_turn import TurnsMaker
from launcher.demo.training.corpus.echoes import (
    make_copy_turns,
    make_lower_case_turns,
    make_remembered_fact_turns,
    make_unknown_fact_turns,
)


@pytest.mark.parametrize("kind",
                         [make_copy_turns, make_lower_case_turns, make_remembered_fact_turns, make_unknown_fact_turns])
def test_turns_are_written_without_faults(kind: TurnsMaker) -> None:
    texts = [text for turn in draw_turns(kind, 400) for text in turn]
    assert [(text, find_text_faults(text)) for text in texts if text and find_text_faults(text)] == []


def test_same_seed_gives_the_same_turns() -> None:
    assert draw_turns(make_copy_turns) == draw_turns(make_copy_turns)


def test_copied_answers_use_words_of_the_question() -> None:
    for turn in draw_turns(make_copy_turns, 400):
        assert all(word in turn.question.lower() for word in turn.answer.lower().split()), turn


def test_upper_case_answers_are_given_on_request() -> None:
    for turn in draw_turns(make_copy_turns, 400):
        if "upper case" in turn.question.lower() or "capital" in turn.question:
            assert turn.answer == turn.answer.upper()


def test_lower_case_answers_are_made_of_capitals() -> None:
    for turn in draw_turns(make_lower_case_turns):
        assert turn.answer == turn.answer.lower()
        assert turn.answer.upper() in turn.question


def test_name_given_by_the_user_is_remembered() -> None:
    for turn in draw_turns(make_remembered_fact_turns, 300):
        if turn.answer.startswith("Your name is "):
            assert turn.question.lower().rstrip("?").split()[-1] in ("name", "i", "called")
    named = [turn for turn in draw_turns(make_remembered_fact_turns, 300) if "nice to meet you" in turn.answer]
    assert named
    assert all(turn.answer.split("!")[0].removeprefix("Hello, ") in turn.question for turn in named)


def test_earlier_statement_is_asked_for_later() -> None:
    for seed in range(100):
        first, *_, last = make_remembered_fact_turns(Random(seed))
        assert last.brief_answer.rstrip(".").lower().removeprefix("a ").removeprefix("an ") in " ".join(
            turn.question for turn in make_remembered_fact_turns(Random(seed))).lower()
        assert first.brief_answer == ""


def test_unknown_facts_are_not_claimed() -> None:
    assert all("not told me" in turn.answer for turn in draw_turns(make_unknown_fact_turns))
