"""Tests that every word is spelled right and that statements about its letters are true."""

import re
from collections.abc import Iterator

import pytest
from support.corpus_checks import flaws, is_repeatable, turns

from launcher.demo.training.corpus import spelling
from launcher.demo.training.corpus.spelling import MAKERS, PALINDROMES, TIMES, WORDS
from launcher.demo.training.talk import Maker


def spelled(maker: Maker) -> Iterator[tuple[str, str, str]]:
    """Yield each question, its word, and the text of the answer after the letters."""
    for question, answer in turns(maker):
        match = re.fullmatch(r"The word (\w+) is spelled ([a-z-]+)\.(.*)", answer)
        assert match, answer
        assert "-".join(match[1]) == match[2]
        yield question, match[1], match[3].strip()


@pytest.mark.parametrize("maker", [*MAKERS, spelling.spelling])
def test_texts_are_clean_and_repeatable(maker: Maker) -> None:
    assert [line for line in flaws(maker) if not re.search(r"(letters?|an) a |is a one of", line, re.IGNORECASE)] == []
    assert is_repeatable(maker)


def test_no_word_stands_in_the_list_twice() -> None:
    assert len(set(WORDS)) == len(WORDS)


def test_palindromes_are_the_same_both_ways() -> None:
    assert [word for word in PALINDROMES if word != word[::-1]] == []


@pytest.mark.parametrize("maker", MAKERS)
def test_the_word_of_the_question_is_spelled(maker: Maker) -> None:
    assert all(word in question.lower() for question, word, _ in spelled(maker))


def test_first_and_last_letters_are_told() -> None:
    assert all(said == f"The first letter is {word[0]}." for _, word, said in spelled(spelling.first))
    assert all(said == f"The last letter is {word[-1]}." for _, word, said in spelled(spelling.last))


def test_letters_are_counted() -> None:
    assert all(said == f"It has {len(word)} letters." for _, word, said in spelled(spelling.count))


def test_short_words_are_turned_around() -> None:
    for _, word, said in spelled(spelling.backwards):
        assert 3 <= len(word) <= 5
        assert said.endswith(f": {word[::-1]}.")


def test_palindromes_are_found() -> None:
    found = {word == word[::-1]: said for _, word, said in spelled(spelling.same_both_ways)}
    assert all(("Yes" in said) == (word == word[::-1]) for _, word, said in spelled(spelling.same_both_ways))
    assert set(found) == {True, False}


def test_letters_in_a_word_are_found_and_counted() -> None:
    for _, word, said in spelled(spelling.has_letter):
        assert said.startswith("Yes") == (said[-2] in word)
    for _, word, said in spelled(spelling.how_often):
        letter = said.split()[2]
        assert said == f"The letter {letter} is there {TIMES[word.count(letter)]}."
