"""Plain sentences in the voice of the King James Bible."""

from random import Random

import pytest

from launcher.demo.training.corpus.archaic import archaic, older, sentences


@pytest.mark.parametrize(("plain", "old"), [
    ("A cow says moo.", "A cow saith moo."), ("You are kind.", "Thou art kind."),
    ("Your hat is red.", "Thy hat is red."),
    ("A fox lives in a den.", "A fox dwelleth in a den."), ("You see with your eyes.", "Thou seest with thy eyes."),
    ("You like soup.", "Thou likest soup."), ("She gave it to the owl.", "She gave it unto the owl."),
    ("She went to sleep.", "She went to sleep."), ("No, that is wrong.", "Nay, that is wrong."),
    ("Once upon a time, there was a boy.", "In those days there was a lad."),
    ("I do not know.", "I know not."), ("She was very happy.", "She was exceeding happy."),
])
def test_words_become_older(plain: str, old: str) -> None:
    assert older(plain) == old


def test_what_is_said_in_quotation_marks_stays_together() -> None:
    text = 'One day, he met an owl. "Hello! Who are you?" he asked. "I am Tom." Then it was night.'
    assert list(sentences(text)) == ["One day, he met an owl.", '"Hello! Who are you?" he asked.', '"I am Tom."',
                                     "Then it was night."]


def test_lines_of_a_poem_are_joined_to_sentences() -> None:
    poem = "The day is done,\nAnd I am here.\nI sleep."
    assert list(sentences(poem)) == ["The day is done, and I am here.", "I sleep."]


@pytest.mark.parametrize("seed", range(20))
def test_the_voice_is_unmistakable_and_names_stay_names(seed: int) -> None:
    told = archaic("Mia was a girl. The fox lives in the forest.", Random(seed))
    assert "Mia was a damsel." in told
    assert "the fox dwelleth in the forest." in told
    assert any(word in told for word in ("behold", "lo,", "Verily", "Hearken", "came to pass"))


def test_what_is_no_sentence_stays_as_it_is() -> None:
    assert archaic("red Basket", Random(1)) == "And I said, red Basket."


def test_the_same_seed_speaks_the_same() -> None:
    assert archaic("The sky is blue.", Random(4)) == archaic("The sky is blue.", Random(4))
