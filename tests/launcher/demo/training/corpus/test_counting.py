"""Tests of conversations about counting: all counts are right."""

import re
from string import ascii_lowercase

import pytest
from support.corpus_checks import find_flawed_lines, is_deterministic, iter_questions_and_answers

from launcher.demo.training.conversation import DocumentMaker
from launcher.demo.training.corpus import counting
from launcher.demo.training.corpus.counting import WEIGHTED_MAKERS, write_number_in_words
from launcher.demo.training.evaluation_cases import is_correct_count

NUMBER_BY_WORDS = {write_number_in_words(number): number for number in range(101)}
WORD_PATTERN = re.compile(r"\d+|[a-z]+(?:-[a-z]+)?")


def find_numbers(text: str) -> list[int]:
    """Return the numbers of a text in order, written in digits or in words."""
    words = WORD_PATTERN.findall(text.lower().replace("one hundred", "100"))
    return [int(word) if word.isdigit() else NUMBER_BY_WORDS[word] for word in words if word.isdigit()
            or word in NUMBER_BY_WORDS]


@pytest.mark.parametrize("maker", [*WEIGHTED_MAKERS, counting.make_counting_document])
def test_texts_are_clean_and_repeatable(maker: DocumentMaker) -> None:
    assert find_flawed_lines(maker) == []
    assert is_deterministic(maker)


@pytest.mark.parametrize(("number", "words"), [
    (0, "zero"), (7, "seven"), (13, "thirteen"), (20, "twenty"), (21, "twenty-one"), (99, "ninety-nine"),
    (100, "one hundred")])
def test_numbers_have_words_up_to_a_hundred(number: int, words: str) -> None:
    assert write_number_in_words(number) == words


@pytest.mark.parametrize("maker", [counting.make_count_up, counting.make_count_up_in_words, counting.make_two_counts])
def test_counting_ends_at_the_requested_number(maker: DocumentMaker) -> None:
    wrong = [question for question, answer in iter_questions_and_answers(maker)
             if not is_correct_count(answer, 1, find_numbers(question)[-1])]
    assert wrong == []


@pytest.mark.parametrize("maker", [counting.make_count_between, counting.make_count_down])
def test_counting_goes_from_the_first_number_to_the_second(maker: DocumentMaker) -> None:
    for question, answer in iter_questions_and_answers(maker):
        first, last = (*find_numbers(question), 1)[:2]
        assert is_correct_count(answer, first, last), question


def test_steps_have_the_requested_width() -> None:
    for question, answer in iter_questions_and_answers(counting.make_count_by_steps):
        step, *_ = numbers = find_numbers(answer)
        assert numbers == list(range(step, max(find_numbers(question)) + 1, step))
        assert counting.STEP_NAMES[step] in question or f"steps of {step}" in question


def test_things_are_counted_one_by_one() -> None:
    for question, answer in iter_questions_and_answers(counting.make_count_things):
        assert find_numbers(answer) == list(range(1, find_numbers(question)[0] + 1))


def test_neighbouring_numbers_differ_by_one() -> None:
    for question, answer in iter_questions_and_answers(counting.make_neighbour_number_question):
        number, neighbour = find_numbers(answer)
        assert str(number) in question
        assert neighbour - number == (1 if answer.startswith("After") else -1)


def test_bigger_number_is_named_in_comparisons() -> None:
    for question, answer in iter_questions_and_answers(counting.make_number_comparison):
        first, second = map(int, re.findall(r"\d+", answer))
        assert {str(first), str(second)} == set(re.findall(r"\d+", question))
        assert (first < second) == ("smaller" in answer)
        assert answer.startswith("No") or not answer.startswith("Yes") or find_numbers(question)[0] == first


def test_sorting_keeps_all_numbers() -> None:
    for question, answer in iter_questions_and_answers(counting.make_number_sorting):
        backwards = "big to small" in question or "backwards" in question or "biggest to" in question
        assert find_numbers(answer) == sorted(map(int, re.findall(r"\d+", question)), reverse=backwards)


def test_number_series_are_continued_correctly() -> None:
    for question, answer in iter_questions_and_answers(counting.make_sequence_continuation):
        *_, before, last = map(int, re.findall(r"\d+", question))
        assert answer == f"The next number is {2 * last - before}."


def test_even_and_odd_numbers_are_distinguished() -> None:
    for _, answer in iter_questions_and_answers(counting.make_even_or_odd_question):
        assert answer.endswith("odd.") == bool(find_numbers(answer)[0] % 2)


def test_letters_are_in_the_order_of_the_alphabet() -> None:
    for _, answer in iter_questions_and_answers(counting.make_alphabet_recital):
        assert answer.removesuffix(".").replace(", ", "") in ascii_lowercase


def test_neighbouring_letter_is_correct() -> None:
    for _, answer in iter_questions_and_answers(counting.make_neighbour_letter_question):
        preposition, first, _, second = answer.removesuffix(".").split()
        assert (first + second if preposition == "After" else second + first) in ascii_lowercase


def test_words_are_counted_correctly() -> None:
    for question, answer in iter_questions_and_answers(counting.make_word_count_question):
        words = re.findall(r"\d+ (\w+)", answer)[:-1]
        assert " ".join(words) in question
        assert answer.endswith(f"There are {len(words)} words.")


def test_continuation_starts_where_counting_ended() -> None:
    exchanges = list(iter_questions_and_answers(counting.make_continued_count))
    for (_, first), (_, second) in zip(exchanges[::2], exchanges[1::2], strict=True):
        assert is_correct_count(f"{first} {second}", 1, find_numbers(first)[-1] + 5)
