"""Tests of conversations about arithmetic: all sums are right."""

import re
from itertools import pairwise
from operator import add, floordiv, mul, sub

import pytest
from support.corpus_checks import (
    draw_conversations,
    draw_items,
    find_flawed_lines,
    get_message_texts,
    is_deterministic,
    iter_questions_and_answers,
)

from launcher.demo.training.conversation import DocumentMaker
from launcher.demo.training.corpus import arithmetic
from launcher.demo.training.corpus.arithmetic import WEIGHTED_MAKERS

OPERATIONS = {"+": add, "-": sub, "*": mul, "/": floordiv, "plus": add, "minus": sub, "times": mul,
              "divided by": floordiv}
SUM_PATTERN = re.compile(r"(\d+) (\+|-|\*|/|plus|minus|times|divided by) (\d+) (?:=|is) (\d+)")


def find_wrong_sums(text: str) -> list[tuple[str, ...]]:
    return [match for match in SUM_PATTERN.findall(text) if OPERATIONS[match[1]](int(match[0]), int(match[2]))
            != int(match[3])]


@pytest.mark.parametrize("maker", [*WEIGHTED_MAKERS, arithmetic.make_arithmetic_document])
def test_texts_are_clean_and_repeatable(maker: DocumentMaker) -> None:
    assert find_flawed_lines(maker) == []
    assert is_deterministic(maker)


@pytest.mark.parametrize("maker", WEIGHTED_MAKERS)
def test_every_sum_is_right(maker: DocumentMaker) -> None:
    plain = [item for item in draw_items(maker) if isinstance(item, str)]
    messages = [message for talk in draw_conversations(maker) for message in talk.messages]
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    assert [wrong_sum for text in (*plain, *answers) for wrong_sum in find_wrong_sums(text)] == []


@pytest.mark.parametrize("maker", [arithmetic.make_arithmetic_with_symbols,
                                   arithmetic.make_arithmetic_with_spoken_sign])
def test_the_answer_repeats_the_numbers_of_the_question(maker: DocumentMaker) -> None:
    for question, answer in iter_questions_and_answers(maker):
        assert re.findall(r"\d+", answer)[:2] == re.findall(r"\d+", question)


def test_results_are_small_whole_numbers() -> None:
    results = [int(result) for _, answer in iter_questions_and_answers(arithmetic.make_arithmetic_with_symbols, 500)
               for *_, result in SUM_PATTERN.findall(answer)]
    assert len(results) == 500
    assert 0 <= min(results) <= max(results) <= 100


def test_questions_in_words_are_answered_in_words() -> None:
    answers = [answer for _, answer in iter_questions_and_answers(arithmetic.make_arithmetic_in_words)]
    assert not any(re.search(r"\d", answer) for answer in answers)


@pytest.mark.parametrize("maker", [arithmetic.make_addition_problem, arithmetic.make_subtraction_problem,
                                   arithmetic.make_multiplication_problem])
def test_story_problem_ends_with_its_result(maker: DocumentMaker) -> None:
    for question, answer in iter_questions_and_answers(maker):
        _, _, result, repeated_result = re.findall(r"\d+", answer)
        assert repeated_result == result
        assert sorted(re.findall(r"\d+", question)) == sorted(re.findall(r"\d+", answer)[:2])


def test_doubles_and_halves_are_right() -> None:
    for _, answer in iter_questions_and_answers(arithmetic.make_doubling_question):
        assert re.fullmatch(r"The double of (\d+) is (\d+)\.", answer)
        half, whole = map(int, re.findall(r"\d+", answer))
        assert 2 * half == whole
    for _, answer in iter_questions_and_answers(arithmetic.make_halving_question):
        whole, half = map(int, re.findall(r"\d+", answer))
        assert 2 * half == whole


def test_claims_are_judged_right_or_wrong() -> None:
    for question, answer in iter_questions_and_answers(arithmetic.make_equation_check):
        claimed_result, result = (re.findall(r"\d+", text)[-1] for text in (question, answer))
        assert answer.startswith("Yes" if claimed_result == result else "No")


def test_chained_sums_start_with_the_last_result() -> None:
    for talk in draw_conversations(arithmetic.make_chained_sums):
        answers = [text for text in get_message_texts(talk) if re.fullmatch(r"\d+ . \d+ = \d+\.", text)]
        numbers = [re.findall(r"\d+", answer) for answer in answers]
        assert all(after[0] == before[2] for before, after in pairwise(numbers))


def test_a_fifth_of_the_talks_show_their_working() -> None:
    talks = draw_conversations(arithmetic.make_arithmetic_document, 1000)
    thinking = [talk for talk in talks if talk.has_reasoning]
    assert 0.12 < len(thinking) / len(talks) < 0.24
    assert all(talk.messages[-1]["content"].startswith("<think>\n") for talk in thinking)
    assert not any("<think>" in text for talk in talks if not talk.has_reasoning for text in get_message_texts(talk))
