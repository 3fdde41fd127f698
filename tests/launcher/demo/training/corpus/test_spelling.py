"""Tests that every word is spelled right and that statements about its letters are true."""

import re
from collections.abc import Iterator

import pytest
from support.corpus_checks import find_flawed_lines, is_deterministic, iter_questions_and_answers

from launcher.demo.training.conversation import DocumentMaker
from launcher.demo.training.corpus import spelling
from launcher.demo.training.corpus.spelling import PALINDROMES, SPELLING_WORDS, TIMES_IN_WORDS, WEIGHTED_MAKERS


def iter_spelled_words(maker: DocumentMaker) -> Iterator[tuple[str, str, str]]:
    """Yield each question, its word, and the text of the answer after the letters."""
    for question, answer in iter_questions_and_answers(maker):
        match = re.fullmatch(r"The word (\w+) is spelled ([a-z-]+)\.(.*)", answer)
        assert match, answer
        assert "-".join(match[1]) == match[2]
        yield question, match[1], match[3].strip()


@pytest.mark.parametrize("maker", [*WEIGHTED_MAKERS, spelling.make_spelling_document])
def test_texts_are_clean_and_repeatable(maker: DocumentMaker) -> None:
    assert [line for line in find_flawed_lines(maker)
            if not re.search(r"(letters?|an) a |is a one of", line, re.IGNORECASE)] == []
    assert is_deterministic(maker)


def test_word_list_has_no_duplicates() -> None:
    assert len(set(SPELLING_WORDS)) == len(SPELLING_WORDS)


def test_palindromes_read_the_same_both_ways() -> None:
    assert [word for word in PALINDROMES if word != word[::-1]] == []


@pytest.mark.parametrize("maker", WEIGHTED_MAKERS)
def test_word_of_the_question_is_spelled(maker: DocumentMaker) -> None:
    assert all(word in question.lower() for question, word, _ in iter_spelled_words(maker))


def test_first_and_last_letters_are_right() -> None:
    assert all(answer == f"The first letter is {word[0]}."
               for _, word, answer in iter_spelled_words(spelling.make_first_letter_question))
    assert all(answer == f"The last letter is {word[-1]}."
               for _, word, answer in iter_spelled_words(spelling.make_last_letter_question))


def test_letter_counts_are_right() -> None:
    assert all(answer == f"It has {len(word)} letters."
               for _, word, answer in iter_spelled_words(spelling.make_letter_count_question))


def test_short_words_are_reversed() -> None:
    for _, word, answer in iter_spelled_words(spelling.make_backwards_question):
        assert 3 <= len(word) <= 5
        assert answer.endswith(f": {word[::-1]}.")


def test_palindrome_answers_are_right() -> None:
    answers = {word == word[::-1]: answer for _, word, answer in iter_spelled_words(spelling.make_palindrome_question)}
    assert all(("Yes" in answer) == (word == word[::-1])
               for _, word, answer in iter_spelled_words(spelling.make_palindrome_question))
    assert set(answers) == {True, False}


def test_letter_occurrences_are_found_and_counted() -> None:
    for _, word, answer in iter_spelled_words(spelling.make_has_letter_question):
        assert answer.startswith("Yes") == (answer[-2] in word)
    for _, word, answer in iter_spelled_words(spelling.make_letter_frequency_question):
        letter = answer.split()[2]
        assert answer == f"The letter {letter} is there {TIMES_IN_WORDS[word.count(letter)]}."
