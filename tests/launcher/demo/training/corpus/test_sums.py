"""Tests that all sums are right."""

import re
from itertools import pairwise
from operator import add, floordiv, mul, sub

import pytest
from support.corpus_checks import flaws, is_repeatable, made, talks, texts, turns

from launcher.demo.training.corpus import sums
from launcher.demo.training.corpus.sums import MAKERS
from launcher.demo.training.talk import Maker

WORK = {"+": add, "-": sub, "*": mul, "/": floordiv, "plus": add, "minus": sub, "times": mul, "divided by": floordiv}
SUM = re.compile(r"(\d+) (\+|-|\*|/|plus|minus|times|divided by) (\d+) (?:=|is) (\d+)")


def wrong(text: str) -> list[tuple[str, ...]]:
    return [found for found in SUM.findall(text) if WORK[found[1]](int(found[0]), int(found[2])) != int(found[3])]


@pytest.mark.parametrize("maker", [*MAKERS, sums.sums])
def test_texts_are_clean_and_repeatable(maker: Maker) -> None:
    assert flaws(maker) == []
    assert is_repeatable(maker)


@pytest.mark.parametrize("maker", MAKERS)
def test_every_sum_is_right(maker: Maker) -> None:
    plain = [item for item in made(maker) if isinstance(item, str)]
    messages = [message for talk in talks(maker) for message in talk.messages]
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    assert [found for text in (*plain, *answers) for found in wrong(text)] == []


@pytest.mark.parametrize("maker", [sums.signed, sums.spoken])
def test_the_answer_repeats_the_numbers_of_the_question(maker: Maker) -> None:
    for question, answer in turns(maker):
        assert re.findall(r"\d+", answer)[:2] == re.findall(r"\d+", question)


def test_results_are_whole_and_small() -> None:
    results = [int(result) for _, answer in turns(sums.signed, 500) for *_, result in SUM.findall(answer)]
    assert len(results) == 500
    assert 0 <= min(results) <= max(results) <= 100


def test_words_are_answered_in_words() -> None:
    assert not any(re.search(r"\d", answer) for _, answer in turns(sums.all_in_words))


@pytest.mark.parametrize("maker", [sums.gain, sums.loss, sums.groups])
def test_a_story_ends_with_its_result(maker: Maker) -> None:
    for question, answer in turns(maker):
        _, _, result, told = re.findall(r"\d+", answer)
        assert told == result
        assert sorted(re.findall(r"\d+", question)) == sorted(re.findall(r"\d+", answer)[:2])


def test_doubles_and_halves_are_right() -> None:
    for _, answer in turns(sums.doubled):
        assert re.fullmatch(r"The double of (\d+) is (\d+)\.", answer)
        half, whole = map(int, re.findall(r"\d+", answer))
        assert 2 * half == whole
    for _, answer in turns(sums.halved):
        whole, half = map(int, re.findall(r"\d+", answer))
        assert 2 * half == whole


def test_a_claim_is_found_right_or_wrong() -> None:
    for question, answer in turns(sums.checked):
        told, result = (re.findall(r"\d+", text)[-1] for text in (question, answer))
        assert answer.startswith("Yes" if told == result else "No")


def test_a_chain_goes_on_with_the_result_before() -> None:
    for talk in talks(sums.chain):
        answers = [text for text in texts(talk) if re.fullmatch(r"\d+ . \d+ = \d+\.", text)]
        numbers = [re.findall(r"\d+", answer) for answer in answers]
        assert all(after[0] == before[2] for before, after in pairwise(numbers))


def test_a_fifth_of_the_talks_show_their_working() -> None:
    found = talks(sums.sums, 1000)
    thinking = [talk for talk in found if talk.thinks]
    assert 0.12 < len(thinking) / len(found) < 0.24
    assert all(talk.messages[-1]["content"].startswith("<think>\n") for talk in thinking)
    assert not any("<think>" in text for talk in found if not talk.thinks for text in texts(talk))
