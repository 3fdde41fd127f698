"""Templates become sentences, and questions look as people type them."""

from random import Random

import pytest

from launcher.demo.training.corpus.grammar import a, capital, expand, forms, invented, put


def test_one_of_several_is_chosen_and_slots_are_filled() -> None:
    found = {expand("[Tell|Write] me {x}.", Random(seed), x="a story") for seed in range(20)}
    assert found == {"Tell me a story.", "Write me a story."}


def test_a_choice_may_hold_choices() -> None:
    found = {expand("so[ [very|quite] nice|]", Random(seed)) for seed in range(40)}
    assert found == {"so very nice", "so quite nice", "so"}


def test_the_same_seed_chooses_the_same() -> None:
    assert expand("[a|b|c|d|e|f]", Random(3)) == expand("[a|b|c|d|e|f]", Random(3))


@pytest.mark.parametrize(("word", "expected"), [
    ("fox", "a fox"), ("owl", "an owl"), ("unicorn", "a unicorn"), ("uncle", "an uncle"), ("old hat", "an old hat"),
    ("hour", "an hour"), ("one-way street", "a one-way street"), ("Anna", "an Anna"),
])
def test_an_article_goes_by_sound(word: str, expected: str) -> None:
    assert a(word) == expected


def test_forms_of_a_word_have_its_article_and_begin_sentences() -> None:
    assert forms(x="owl") == {"x": "owl", "a_x": "an owl", "X": "Owl", "A_x": "An owl"}


def test_a_capital_letter_leaves_the_others_alone() -> None:
    assert capital("new York") == "New York"


def test_invented_words_are_short_and_hardly_repeat() -> None:
    rng = Random(1)
    words = [invented(rng) for _ in range(200)]
    assert len(set(words)) > 190
    assert all(word.islower() and 4 <= len(word) <= 7 for word in words)


def test_a_question_keeps_its_words_however_it_is_typed() -> None:
    typed = {put("What is an owl?", Random(seed)) for seed in range(200)}
    assert {"What is an owl?", "what is an owl?", "What is an owl", "What is an owl, please?",
            "Hi! What is an owl?"} <= typed
    assert all("what is an owl" in each.lower() for each in typed)


def test_nobody_says_please_who_asks_for_nothing() -> None:
    typed = {put("I am sad.", Random(seed)) for seed in range(200)}
    assert typed == {"I am sad.", "I am sad", "i am sad.", "i am sad"}
