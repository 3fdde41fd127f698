"""Tests that small questions get right answers in every phrasing."""

from random import Random

import pytest
from support.prose_checks import draw_turns, find_text_faults

from launcher.demo.training.corpus.conversation_turn import TurnsMaker
from launcher.demo.training.corpus.fact_questions import (
    make_backwards_question,
    make_calendar_list_turns,
    make_direct_question,
    make_fact_turns,
    make_size_comparison_turns,
    make_unknown_word_turns,
    make_yes_no_question,
)
from launcher.demo.training.corpus.facts import RELATIONS, FactRelation
from launcher.demo.training.corpus.words import ANIMAL_HOMES, ANIMAL_SOUNDS, THINGS_BY_SIZE

SOUNDS_RELATION = next(relation for relation in RELATIONS if relation.facts is ANIMAL_SOUNDS)


@pytest.mark.parametrize("kind", [make_fact_turns, make_size_comparison_turns, make_calendar_list_turns,
                                  make_unknown_word_turns])
def test_turns_are_written_without_faults(kind: TurnsMaker) -> None:
    texts = [text for turn in draw_turns(kind, 400) for text in turn]
    assert [(text, find_text_faults(text)) for text in texts if text and find_text_faults(text)] == []


def test_same_seed_gives_the_same_turns() -> None:
    assert draw_turns(make_fact_turns) == draw_turns(make_fact_turns)


def test_answer_names_the_subject() -> None:
    turn = make_direct_question(SOUNDS_RELATION, "cow", "moo", Random(1))
    assert "cow" in turn.question
    assert (turn.answer, turn.brief_answer) == ("A cow says moo.", "Moo.")


def test_doubting_question_is_answered_with_the_fact() -> None:
    turns = {make_yes_no_question(SOUNDS_RELATION, "cow", "moo", Random(seed)) for seed in range(40)}
    assert {turn.answer for turn in turns} == {"Yes, a cow says moo.", "No, a cow says moo."}
    assert all(("moo" in turn.question) == turn.answer.startswith("Yes") for turn in turns)
    assert {turn.brief_answer for turn in turns} == {"Yes.", "No."}


def test_general_categories_are_never_wrong_alternatives() -> None:
    relation = FactRelation({"owl": "bird", "cat": "animal", "oak": "tree"}, ("{x}?",), "{A_x} is {a_y}.",
                            ("Is {a_x} {a_y}?",), widely_true_values=frozenset({"animal"}))
    questions = {make_yes_no_question(relation, "owl", "bird", Random(seed)).question for seed in range(40)}
    assert questions == {"Is an owl a bird?", "Is an owl a tree?"}


def test_reverse_question_is_answered_with_the_fact() -> None:
    turn = make_backwards_question(SOUNDS_RELATION, "cow", "moo", Random(1))
    assert turn.answer.split(" says ")[1] in turn.question.replace("?", ".")


def test_shared_facts_are_not_asked_in_reverse() -> None:
    shared = {home for home in ANIMAL_HOMES.values() if list(ANIMAL_HOMES.values()).count(home) > 1}
    relation = next(relation for relation in RELATIONS if relation.facts is ANIMAL_HOMES)
    questions = {make_backwards_question(relation, "fox", "a den", Random(seed)).question for seed in range(100)}
    assert [question for question in questions if any(question.endswith(f" in {home}?") for home in shared)] == []


def test_size_comparisons_are_right() -> None:
    for turn in draw_turns(make_size_comparison_turns):
        first, second = turn.answer.rstrip(".").replace("Yes, ", "").replace("No, ", "").lower().split(" than ")
        left, right = THINGS_BY_SIZE.index(first.split()[1]), THINGS_BY_SIZE.index(second.split()[1])
        assert left > right if "bigger" in first else left < right


def test_questions_about_unknown_words_are_not_answered() -> None:
    assert all(turn.answer.startswith("I do not know") for turn in draw_turns(make_unknown_word_turns))
