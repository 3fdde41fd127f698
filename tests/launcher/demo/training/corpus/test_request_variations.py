"""Tests of random variations of a request and of filling its slots."""

from random import Random

from launcher.demo.training.corpus.request_variations import (
    capitalize_first_letter,
    choose_weighted,
    fill_random_template,
    fill_slots,
    format_value,
    join_words,
    list_slots,
    lowercase_first_letter,
    make_conversation,
    prepend_reasoning,
    randomly_lowercase_values,
    split_implied_values,
    vary_template,
)


def draw_phrasings(template: str, count: int = 300) -> set[str]:
    rng = Random(1)
    return {vary_template(rng, template) for _ in range(count)}


def test_order_may_be_phrased_as_a_question() -> None:
    assert {"Count to {n}", "Can you count to {n}?", "count to {n}!",
            "Count to {n}, please."} <= draw_phrasings("Count to {n}")


def test_question_keeps_its_words_but_may_lose_its_mark() -> None:
    assert draw_phrasings("What is {n}?") == {"What is {n}?", "What is {n}", "what is {n}?", "what is {n}"}


def test_nothing_is_added_after_a_final_list() -> None:
    assert all(phrasing.endswith(": {row}") for phrasing in draw_phrasings("Sort: {row}"))


def test_values_are_never_changed() -> None:
    rng = Random(1)
    assert all("Mia B." in fill_random_template(rng, ("Call {who}", "Who is {who}?"), who="Mia B.") for _ in range(100))


def test_slot_names_in_values_are_not_filled() -> None:
    assert fill_slots("Use {schema} for {name}", {"schema": "{name}", "name": "Mia"}) == "Use {name} for Mia"


def test_article_fits_the_value_after_it() -> None:
    assert fill_slots("a {one} and a {two}", {"one": "owl", "two": "cat"}) == "an owl and a cat"


def test_slots_are_listed_in_order() -> None:
    assert list_slots("A {b} in {c}: {a}") == ["b", "c", "a"]


def test_template_may_have_implied_arguments() -> None:
    assert split_implied_values("Light on in the {room} #on=true size=big pet=null") == (
        "Light on in the {room}", {"on": True, "size": "big", "pet": None})


def test_values_are_spoken_naturally() -> None:
    assert [format_value(value) for value in (True, None, 3, ["a", "b", "c"])] == ["true", "null", "3", "a, b and c"]


def test_some_values_are_typed_in_lower_case() -> None:
    rng = Random(1)
    variants = [randomly_lowercase_values(rng, {"who": "Mia", "with": ["Ben"], "age": 7}) for _ in range(200)]
    assert {tuple(map(str, values.values())) for values in variants} == {("Mia", "['Ben']", "7"),
                                                                         ("mia", "['ben']", "7")}


def test_single_word_counts_as_a_list() -> None:
    assert join_words(["red"]) == "red"


def test_first_letters_change_case_except_in_names() -> None:
    assert (lowercase_first_letter("Count"), lowercase_first_letter("JSON with"),
            capitalize_first_letter("count")) == ("count", "JSON with", "Count")


def test_weights_determine_frequencies() -> None:
    rng = Random(1)
    assert {choose_weighted(rng, {"often": 1, "never": 0}) for _ in range(50)} == {"often"}


def test_chat_alternates_roles_after_an_optional_system_message() -> None:
    rng = Random(1)
    roles = {tuple(message["role"] for message in make_conversation(rng, "a", "b", "c", "d").messages)
             for _ in range(100)}
    turns = ("user", "assistant", "user", "assistant")
    assert roles == {turns, ("system", *turns)}


def test_thought_precedes_its_answer() -> None:
    assert prepend_reasoning("2 and 2.", "4.") == "<think>\n2 and 2.\n</think>\n4."
