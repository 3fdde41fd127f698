"""Tests that all counting is right."""

import re
from string import ascii_lowercase

import pytest
from support.corpus_checks import flaws, is_repeatable, turns

from launcher.demo.training.corpus import counting
from launcher.demo.training.corpus.counting import MAKERS, in_words
from launcher.demo.training.judge import counts_right
from launcher.demo.training.talk import Maker

NUMBERS = {in_words(number): number for number in range(101)}
WORD = re.compile(r"\d+|[a-z]+(?:-[a-z]+)?")


def numbers(text: str) -> list[int]:
    """Return the numbers of a text in order, written in digits or in words."""
    words = WORD.findall(text.lower().replace("one hundred", "100"))
    return [int(word) if word.isdigit() else NUMBERS[word] for word in words if word.isdigit() or word in NUMBERS]


@pytest.mark.parametrize("maker", [*MAKERS, counting.counting])
def test_texts_are_clean_and_repeatable(maker: Maker) -> None:
    assert flaws(maker) == []
    assert is_repeatable(maker)


@pytest.mark.parametrize(("number", "words"), [
    (0, "zero"), (7, "seven"), (13, "thirteen"), (20, "twenty"), (21, "twenty-one"), (99, "ninety-nine"),
    (100, "one hundred")])
def test_numbers_have_words_up_to_a_hundred(number: int, words: str) -> None:
    assert in_words(number) == words


@pytest.mark.parametrize("maker", [counting.up, counting.up_in_words, counting.again])
def test_counting_ends_at_the_number_that_was_asked_for(maker: Maker) -> None:
    wrong = [question for question, answer in turns(maker) if not counts_right(answer, 1, numbers(question)[-1])]
    assert wrong == []


@pytest.mark.parametrize("maker", [counting.between, counting.down])
def test_counting_goes_from_the_first_number_to_the_second(maker: Maker) -> None:
    for question, answer in turns(maker):
        first, last = (*numbers(question), 1)[:2]
        assert counts_right(answer, first, last), question


def test_steps_are_as_wide_as_asked() -> None:
    for question, answer in turns(counting.by_steps):
        step, *_ = shown = numbers(answer)
        assert shown == list(range(step, max(numbers(question)) + 1, step))
        assert counting.STEPS[step] in question or f"steps of {step}" in question


def test_things_are_counted_one_by_one() -> None:
    for question, answer in turns(counting.with_things):
        assert numbers(answer) == list(range(1, numbers(question)[0] + 1))


def test_neighbours_are_one_apart() -> None:
    for question, answer in turns(counting.neighbour):
        here, there = numbers(answer)
        assert str(here) in question
        assert there - here == (1 if answer.startswith("After") else -1)


def test_the_bigger_number_is_told() -> None:
    for question, answer in turns(counting.compared):
        first, second = map(int, re.findall(r"\d+", answer))
        assert {str(first), str(second)} == set(re.findall(r"\d+", question))
        assert (first < second) == ("smaller" in answer)
        assert answer.startswith("No") or not answer.startswith("Yes") or numbers(question)[0] == first


def test_sorting_keeps_all_numbers() -> None:
    for question, answer in turns(counting.in_order):
        backwards = "big to small" in question or "backwards" in question or "biggest to" in question
        assert numbers(answer) == sorted(map(int, re.findall(r"\d+", question)), reverse=backwards)


def test_a_row_goes_on_as_it_began() -> None:
    for question, answer in turns(counting.continued):
        *_, before, last = map(int, re.findall(r"\d+", question))
        assert answer == f"The next number is {2 * last - before}."


def test_even_and_odd_are_told_apart() -> None:
    for _, answer in turns(counting.even_or_odd):
        assert answer.endswith("odd.") == bool(numbers(answer)[0] % 2)


def test_letters_are_in_the_order_of_the_alphabet() -> None:
    for _, answer in turns(counting.letters):
        assert answer.removesuffix(".").replace(", ", "") in ascii_lowercase


def test_the_letter_beside_another_is_named() -> None:
    for _, answer in turns(counting.next_letter):
        side, first, _, second = answer.removesuffix(".").split()
        assert (first + second if side == "After" else second + first) in ascii_lowercase


def test_words_are_counted_as_they_stand() -> None:
    for question, answer in turns(counting.how_many_words):
        words = re.findall(r"\d+ (\w+)", answer)[:-1]
        assert " ".join(words) in question
        assert answer.endswith(f"There are {len(words)} words.")


def test_going_on_begins_where_counting_ended() -> None:
    found = list(turns(counting.further))
    for (_, first), (_, second) in zip(found[::2], found[1::2], strict=True):
        assert counts_right(f"{first} {second}", 1, numbers(first)[-1] + 5)
