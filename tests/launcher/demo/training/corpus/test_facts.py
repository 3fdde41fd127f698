"""Tests that tables of facts support every kind of question they declare."""

import pytest

from launcher.demo.training.corpus.facts import RELATIONS, Relation, around, both_ways, regular
from launcher.demo.training.corpus.grammar import forms


@pytest.mark.parametrize(("one", "many"), [
    ("cat", "cats"), ("fox", "foxes"), ("pony", "ponies"), ("monkey", "monkeys"), ("brush", "brushes"),
    ("bus", "buses"),
])
def test_plurals_are_regular(one: str, many: str) -> None:
    assert regular(one) == many


def test_a_ring_goes_around_both_ways() -> None:
    assert around(("a", "b", "c"), 1) == {"a": "b", "b": "c", "c": "a"}
    assert around(("a", "b", "c"), -1) == {"a": "c", "b": "a", "c": "b"}


def test_opposites_go_both_ways() -> None:
    assert both_ways({"hot": "cold"}) == {"hot": "cold", "cold": "hot"}


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_template_takes_the_facts(relation: Relation) -> None:
    words = forms(x="fox", y="den")
    for template in (*relation.asks, *relation.doubts, *relation.backwards, *relation.turns, relation.answer):
        assert "{" not in template.format_map(words)


@pytest.mark.parametrize("relation", RELATIONS)
def test_questions_name_what_is_asked_and_answers_what_is_true(relation: Relation) -> None:
    assert all("x}" in ask.lower() for ask in relation.asks)
    assert "y}" in relation.answer.lower()
    assert "x}" in relation.answer.lower()


@pytest.mark.parametrize("relation", RELATIONS)
def test_what_is_asked_backwards_has_one_answer(relation: Relation) -> None:
    values = list(relation.facts.values())
    assert all(values.count(y) == 1 for y in relation.lonely().values())
