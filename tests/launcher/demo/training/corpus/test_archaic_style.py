"""Tests of rewriting plain sentences in the style of the King James Bible."""

from random import Random

import pytest

from launcher.demo.training.corpus.archaic_style import replace_modern_words, rewrite_as_archaic, split_sentences


@pytest.mark.parametrize(("plain", "old"), [
    ("A cow says moo.", "A cow saith moo."), ("You are kind.", "Thou art kind."),
    ("Your hat is red.", "Thy hat is red."),
    ("A fox lives in a den.", "A fox dwelleth in a den."), ("You see with your eyes.", "Thou seest with thy eyes."),
    ("You like soup.", "Thou likest soup."), ("She gave it to the owl.", "She gave it unto the owl."),
    ("She went to sleep.", "She went to sleep."), ("No, that is wrong.", "Nay, that is wrong."),
    ("Once upon a time, there was a boy.", "In those days there was a lad."),
    ("I do not know.", "I know not."), ("She was very happy.", "She was exceeding happy."),
])
def test_plain_sentences_become_archaic(plain: str, old: str) -> None:
    assert replace_modern_words(plain) == old


def test_quotations_stay_in_one_sentence() -> None:
    text = 'One day, he met an owl. "Hello! Who are you?" he asked. "I am Tom." Then it was night.'
    assert list(split_sentences(text)) == ["One day, he met an owl.", '"Hello! Who are you?" he asked.', '"I am Tom."',
                                           "Then it was night."]


def test_poem_lines_are_joined_to_sentences() -> None:
    poem = "The day is done,\nAnd I am here.\nI sleep."
    assert list(split_sentences(poem)) == ["The day is done, and I am here.", "I sleep."]


@pytest.mark.parametrize("seed", range(20))
def test_archaic_voice_is_recognizable_and_names_stay_names(seed: int) -> None:
    text = rewrite_as_archaic("Mia was a girl. The fox lives in the forest.", Random(seed))
    assert "Mia was a damsel." in text
    assert "the fox dwelleth in the forest." in text
    assert any(word in text for word in ("behold", "lo,", "Verily", "Hearken", "came to pass"))


def test_text_without_sentences_is_kept() -> None:
    assert rewrite_as_archaic("red Basket", Random(1)) == "And I said, red Basket."


def test_same_seed_gives_the_same_text() -> None:
    assert rewrite_as_archaic("The sky is blue.", Random(4)) == rewrite_as_archaic("The sky is blue.", Random(4))
