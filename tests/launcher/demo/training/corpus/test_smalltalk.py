"""Tests of greetings, jokes, and questions that the model cannot answer."""

from random import Random

import pytest
from support.prose_checks import faults, turns

from launcher.demo.training.corpus.smalltalk import JOKES, jokes, moods, outside, said
from launcher.demo.training.corpus.turns import Turns
from launcher.demo.training.corpus.words import FEELINGS_BAD


@pytest.mark.parametrize("kind", [said, moods, jokes, outside])
def test_turns_are_written_without_faults(kind: Turns) -> None:
    texts = [text for turn in turns(kind, 400) for text in turn]
    assert [(text, faults(text)) for text in texts if text and faults(text)] == []


@pytest.mark.parametrize("kind", [said, moods, jokes, outside])
def test_the_same_seed_says_the_same(kind: Turns) -> None:
    assert turns(kind) == turns(kind)


def test_the_model_says_that_it_is_often_wrong() -> None:
    found = [turn.answer for turn in turns(said, 600) if turn.question == "Who are you?"]
    assert found
    assert all("small language model" in answer and "often wrong" in answer for answer in found)


def test_who_is_sad_is_comforted() -> None:
    for turn in turns(moods):
        bad = any(turn.question.rstrip(".").removesuffix(" today").endswith(f" {feeling}") for feeling in FEELINGS_BAD)
        assert turn.answer.startswith("I am sorry") == bad


def test_no_joke_is_told_twice_in_a_row() -> None:
    for seed in range(50):
        told = [turn.answer for turn in jokes(Random(seed))]
        assert len(set(told)) == len(told)


def test_there_are_a_dozen_jokes_with_an_end() -> None:
    assert len(JOKES) >= 12
    assert all(question.endswith("?") and end.endswith(".") for question, end in JOKES)


def test_what_is_outside_is_not_known() -> None:
    assert all(turn.answer.startswith("I do not know") for turn in turns(outside))
