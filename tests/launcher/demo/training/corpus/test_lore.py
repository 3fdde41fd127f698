"""Tests that small questions get right answers in every phrasing."""

from random import Random

import pytest
from support.prose_checks import faults, turns

from launcher.demo.training.corpus.facts import RELATIONS, Relation
from launcher.demo.training.corpus.lore import backwards, doubted, known, lists, sizes, straight, unheard
from launcher.demo.training.corpus.turns import Turns
from launcher.demo.training.corpus.words import BY_SIZE, HOMES, SOUNDS

SAYS = next(relation for relation in RELATIONS if relation.facts is SOUNDS)


@pytest.mark.parametrize("kind", [known, sizes, lists, unheard])
def test_turns_are_written_without_faults(kind: Turns) -> None:
    texts = [text for turn in turns(kind, 400) for text in turn]
    assert [(text, faults(text)) for text in texts if text and faults(text)] == []


def test_the_same_seed_asks_the_same() -> None:
    assert turns(known) == turns(known)


def test_an_answer_names_what_was_asked() -> None:
    turn = straight(SAYS, "cow", "moo", Random(1))
    assert "cow" in turn.question
    assert (turn.answer, turn.brief) == ("A cow says moo.", "Moo.")


def test_who_doubts_what_is_wrong_is_told_what_is_right() -> None:
    found = {doubted(SAYS, "cow", "moo", Random(seed)) for seed in range(40)}
    assert {turn.answer for turn in found} == {"Yes, a cow says moo.", "No, a cow says moo."}
    assert all(("moo" in turn.question) == turn.answer.startswith("Yes") for turn in found)
    assert {turn.brief for turn in found} == {"Yes.", "No."}


def test_what_is_general_is_never_named_as_wrong() -> None:
    relation = Relation({"owl": "bird", "cat": "animal", "oak": "tree"}, ("{x}?",), "{A_x} is {a_y}.",
                        ("Is {a_x} {a_y}?",), general=frozenset({"animal"}))
    asked = {doubted(relation, "owl", "bird", Random(seed)).question for seed in range(40)}
    assert asked == {"Is an owl a bird?", "Is an owl a tree?"}


def test_what_is_asked_backwards_is_answered_forwards() -> None:
    turn = backwards(SAYS, "cow", "moo", Random(1))
    assert turn.answer.split(" says ")[1] in turn.question.replace("?", ".")


def test_what_several_share_is_not_asked_backwards() -> None:
    shared = {home for home in HOMES.values() if list(HOMES.values()).count(home) > 1}
    relation = next(relation for relation in RELATIONS if relation.facts is HOMES)
    questions = {backwards(relation, "fox", "a den", Random(seed)).question for seed in range(100)}
    assert [question for question in questions if any(question.endswith(f" in {home}?") for home in shared)] == []


def test_the_bigger_one_is_bigger() -> None:
    for turn in turns(sizes):
        first, second = turn.answer.rstrip(".").replace("Yes, ", "").replace("No, ", "").lower().split(" than ")
        left, right = BY_SIZE.index(first.split()[1]), BY_SIZE.index(second.split()[1])
        assert left > right if "bigger" in first else left < right


def test_of_what_nobody_knows_nothing_is_said() -> None:
    assert all(turn.answer.startswith("I do not know") for turn in turns(unheard))
