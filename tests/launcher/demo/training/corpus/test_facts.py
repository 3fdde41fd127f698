"""Tests that tables of facts support every kind of question they declare."""

import pytest

from launcher.demo.training.corpus.facts import (
    RELATIONS,
    FactRelation,
    make_cycle_facts,
    make_regular_plural,
    make_symmetric_facts,
)
from launcher.demo.training.corpus.template_expansion import make_slot_forms


@pytest.mark.parametrize(("one", "many"), [
    ("cat", "cats"), ("fox", "foxes"), ("pony", "ponies"), ("monkey", "monkeys"), ("brush", "brushes"),
    ("bus", "buses"),
])
def test_plurals_are_regular(one: str, many: str) -> None:
    assert make_regular_plural(one) == many


def test_ring_of_facts_goes_both_ways() -> None:
    assert make_cycle_facts(("a", "b", "c"), 1) == {"a": "b", "b": "c", "c": "a"}
    assert make_cycle_facts(("a", "b", "c"), -1) == {"a": "c", "b": "a", "c": "b"}


def test_opposites_go_both_ways() -> None:
    assert make_symmetric_facts({"hot": "cold"}) == {"hot": "cold", "cold": "hot"}


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_template_can_be_filled(relation: FactRelation) -> None:
    words = make_slot_forms(x="fox", y="den")
    for template in (*relation.questions, *relation.yes_no_questions, *relation.backwards_questions,
                     *relation.follow_ups, relation.answer_template):
        assert "{" not in template.format_map(words)


@pytest.mark.parametrize("relation", RELATIONS)
def test_questions_name_the_subject_and_answers_the_fact(relation: FactRelation) -> None:
    assert all("x}" in question.lower() for question in relation.questions)
    assert "y}" in relation.answer_template.lower()
    assert "x}" in relation.answer_template.lower()


@pytest.mark.parametrize("relation", RELATIONS)
def test_reverse_questions_have_one_answer(relation: FactRelation) -> None:
    values = list(relation.facts.values())
    assert all(values.count(y) == 1 for y in relation.select_reversible_facts().values())
