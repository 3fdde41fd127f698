"""Tests of phrasing one request in many moods."""

from random import Random

from launcher.demo.training.corpus.asking import (
    chat,
    drawn,
    fill,
    great,
    listed,
    moody,
    parted,
    put,
    slots_of,
    small,
    spoken,
    thought,
    typed,
)


def moods(way: str, count: int = 300) -> set[str]:
    rng = Random(1)
    return {moody(rng, way) for _ in range(count)}


def test_an_order_may_be_put_as_a_question() -> None:
    assert {"Count to {n}", "Can you count to {n}?", "count to {n}!", "Count to {n}, please."} <= moods("Count to {n}")


def test_a_question_keeps_its_words_and_may_lose_its_mark() -> None:
    assert moods("What is {n}?") == {"What is {n}?", "What is {n}", "what is {n}?", "what is {n}"}


def test_nothing_follows_a_list_or_a_sentence_at_the_end() -> None:
    assert all(mood.endswith(": {row}") for mood in moods("Sort: {row}"))


def test_values_are_never_changed() -> None:
    rng = Random(1)
    assert all("Mia B." in put(rng, ("Call {who}", "Who is {who}?"), who="Mia B.") for _ in range(100))


def test_what_looks_like_a_slot_in_a_value_stays() -> None:
    assert fill("Use {schema} for {name}", {"schema": "{name}", "name": "Mia"}) == "Use {name} for Mia"


def test_an_article_fits_the_value_after_it() -> None:
    assert fill("a {one} and a {two}", {"one": "owl", "two": "cat"}) == "an owl and a cat"


def test_slots_are_named_in_order() -> None:
    assert slots_of("A {b} in {c}: {a}") == ["b", "c", "a"]


def test_a_way_may_mean_more_than_it_says() -> None:
    assert parted("Light on in the {room} #on=true size=big pet=null") == (
        "Light on in the {room}", {"on": True, "size": "big", "pet": None})


def test_values_are_said_as_people_say_them() -> None:
    assert [spoken(value) for value in (True, None, 3, ["a", "b", "c"])] == ["true", "null", "3", "a, b and c"]


def test_some_people_type_no_capitals() -> None:
    rng = Random(1)
    found = [typed(rng, {"who": "Mia", "with": ["Ben"], "age": 7}) for _ in range(200)]
    assert {tuple(map(str, values.values())) for values in found} == {("Mia", "['Ben']", "7"), ("mia", "['ben']", "7")}


def test_one_word_is_a_list_too() -> None:
    assert listed(["red"]) == "red"


def test_first_letters_are_changed_except_where_they_are_names() -> None:
    assert (small("Count"), small("JSON with"), great("count")) == ("count", "JSON with", "Count")


def test_weights_say_how_often() -> None:
    rng = Random(1)
    assert {drawn(rng, {"often": 1, "never": 0}) for _ in range(50)} == {"often"}


def test_a_chat_takes_turns_after_what_the_system_says() -> None:
    rng = Random(1)
    roles = {tuple(message["role"] for message in chat(rng, "a", "b", "c", "d").messages) for _ in range(100)}
    turns = ("user", "assistant", "user", "assistant")
    assert roles == {turns, ("system", *turns)}


def test_a_thought_stands_before_its_answer() -> None:
    assert thought("2 and 2.", "4.") == "<think>\n2 and 2.\n</think>\n4."
