"""Tests of greetings, jokes, and questions that the model cannot answer."""

from random import Random

import pytest
from support.prose_checks import draw_turns, find_text_faults

from launcher.demo.training.corpus.conversation_turn import TurnsMaker
from launcher.demo.training.corpus.smalltalk import (
    JOKES,
    make_joke_turns,
    make_mood_turns,
    make_small_talk_turns,
    make_unanswerable_turns,
)
from launcher.demo.training.corpus.words import FEELINGS_BAD


@pytest.mark.parametrize("kind", [make_small_talk_turns, make_mood_turns, make_joke_turns, make_unanswerable_turns])
def test_turns_are_written_without_faults(kind: TurnsMaker) -> None:
    texts = [text for turn in draw_turns(kind, 400) for text in turn]
    assert [(text, find_text_faults(text)) for text in texts if text and find_text_faults(text)] == []


@pytest.mark.parametrize("kind", [make_small_talk_turns, make_mood_turns, make_joke_turns, make_unanswerable_turns])
def test_same_seed_gives_the_same_turns(kind: TurnsMaker) -> None:
    assert draw_turns(kind) == draw_turns(kind)


def test_model_says_that_it_is_often_wrong() -> None:
    answers = [turn.answer for turn in draw_turns(make_small_talk_turns, 600) if turn.question == "Who are you?"]
    assert answers
    assert all("small language model" in answer and "often wrong" in answer for answer in answers)


def test_sad_users_are_comforted() -> None:
    for turn in draw_turns(make_mood_turns):
        bad = any(turn.question.rstrip(".").removesuffix(" today").endswith(f" {feeling}") for feeling in FEELINGS_BAD)
        assert turn.answer.startswith("I am sorry") == bad


def test_no_joke_is_repeated_within_a_talk() -> None:
    for seed in range(50):
        jokes = [turn.answer for turn in make_joke_turns(Random(seed))]
        assert len(set(jokes)) == len(jokes)


def test_jokes_are_many_and_complete() -> None:
    assert len(JOKES) >= 12
    assert all(question.endswith("?") and end.endswith(".") for question, end in JOKES)


def test_questions_beyond_the_model_are_not_answered() -> None:
    assert all(turn.answer.startswith("I do not know") for turn in draw_turns(make_unanswerable_turns))
