"""Tests of expanding templates, and of varying questions as people type them."""

from random import Random

import pytest

from launcher.demo.training.corpus.template_expansion import (
    add_article,
    capitalize_first_letter,
    expand_template,
    invent_word,
    make_slot_forms,
    vary_question,
)


def test_template_choices_and_slots_are_expanded() -> None:
    expansions = {expand_template("[Tell|Write] me {x}.", Random(seed), x="a story") for seed in range(20)}
    assert expansions == {"Tell me a story.", "Write me a story."}


def test_choices_can_be_nested() -> None:
    expansions = {expand_template("so[ [very|quite] nice|]", Random(seed)) for seed in range(40)}
    assert expansions == {"so very nice", "so quite nice", "so"}


def test_same_seed_makes_the_same_choice() -> None:
    assert expand_template("[a|b|c|d|e|f]", Random(3)) == expand_template("[a|b|c|d|e|f]", Random(3))


@pytest.mark.parametrize(("word", "expected"), [
    ("fox", "a fox"), ("owl", "an owl"), ("unicorn", "a unicorn"), ("uncle", "an uncle"), ("old hat", "an old hat"),
    ("hour", "an hour"), ("one-way street", "a one-way street"), ("Anna", "an Anna"),
])
def test_article_depends_on_the_sound(word: str, expected: str) -> None:
    assert add_article(word) == expected


def test_word_forms_include_articles_and_capitals() -> None:
    assert make_slot_forms(x="owl") == {"x": "owl", "a_x": "an owl", "X": "Owl", "A_x": "An owl"}


def test_only_the_first_letter_is_capitalized() -> None:
    assert capitalize_first_letter("new York") == "New York"


def test_invented_words_are_short_and_varied() -> None:
    rng = Random(1)
    words = [invent_word(rng) for _ in range(200)]
    assert len(set(words)) > 190
    assert all(word.islower() and 4 <= len(word) <= 7 for word in words)


def test_question_keeps_its_words_in_every_style() -> None:
    questions = {vary_question("What is an owl?", Random(seed)) for seed in range(200)}
    assert {"What is an owl?", "what is an owl?", "What is an owl", "What is an owl, please?",
            "Hi! What is an owl?"} <= questions
    assert all("what is an owl" in each.lower() for each in questions)


def test_please_is_not_added_to_statements() -> None:
    questions = {vary_question("I am sad.", Random(seed)) for seed in range(200)}
    assert questions == {"I am sad.", "I am sad", "i am sad.", "i am sad"}
