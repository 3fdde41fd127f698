"""Tests of turning definitions into sentences, and of leaving out indecent words."""

from random import Random

import pytest
from support.prose_checks import answers, faults, talks

from launcher.demo.training.corpus.glosses import Gloss, ask, definition, examples, glossed, is_plain, maker, sentences
from launcher.demo.training.corpus.wordnet import Meaning

SLOPE = Gloss("slope", "n", "A slope is an elevated geological formation.", counted=True,
              examples=("The slope is high.",))


def meaning(word: str = "slope", text: str = "a raised part of the earth", part: str = "n", subject: int = 17,
            pointers: tuple[tuple[str, int], ...] = ()) -> Meaning:
    return Meaning(word, part, subject, pointers, text, 9)


@pytest.mark.parametrize(("given", "expected"), [
    (meaning(), "A slope is a raised part of the earth."),
    (meaning("oven", "a box to bake bread", subject=6), "An oven is a box to bake bread."),
    (meaning("hope", "the feeling that all will be well", subject=12), "Hope means the feeling that all will be well."),
    (meaning("scissors", "a tool with two blades", subject=6), "Scissors means a tool with two blades."),
    (meaning("wood", "the hard part of trees", subject=20), "Wood means the hard part of trees."),
    (meaning("iron", "a heavy metal used in tools", subject=27), "Iron is a heavy metal used in tools."),
    (meaning("roam", "move about without aim", "v", 38), "To roam means to move about without aim."),
    (meaning("glad", "showing or causing joy", "a", 0), "Glad means showing or causing joy."),
])
def test_a_definition_becomes_a_sentence(given: Meaning, expected: str) -> None:
    assert glossed(given)[0].sentence == expected


@pytest.mark.parametrize("text", [
    "short one", " ".join(["long"] * 17), "a thing to look at and to think of", "not (in any way) `quoted' words"])
def test_what_makes_no_sentence_is_left_out(text: str) -> None:
    assert glossed(meaning(text=text)) == []


@pytest.mark.parametrize(("text", "expected"), [
    ("a wild animal; lives in Africa", "a wild animal"), ("(music) a short song", "a short song"),
    ("a part (of a whole) with a name", "a part with a name"), ("a thing: large or small", "a thing"),
    ("very big; \"a big house\"", "very big"),
])
def test_a_definition_ends_before_what_is_added_to_it(text: str, expected: str) -> None:
    assert definition(text) == expected


@pytest.mark.parametrize("given", [
    meaning("Paris"), meaning("x"), meaning("incomprehensible"), meaning("cafe9"), meaning(pointers=(("@i", 1),)),
    meaning("gun"), meaning(text="a weapon of old times"), meaning("owl")])
def test_names_long_words_coarse_words_and_our_own_are_left_out(given: Meaning) -> None:
    assert not is_plain(given)


def test_plain_words_are_kept() -> None:
    assert is_plain(meaning())


def test_examples_are_sentences_with_the_word_in_them() -> None:
    given = meaning(text='a hill; "the slope was very steep"; "a steep slope"; "they climbed the hill"')
    assert examples(given) == ("The slope was very steep.",)


def test_a_question_names_the_word_and_the_answer_is_its_sentence() -> None:
    for talk in talks(maker([SLOPE])):
        assert "slope" in talk.messages[0]["content"]
        assert answers(talk) == [SLOPE.sentence]
        assert faults(talk.messages[0]["content"]) == []


def test_the_same_seed_asks_the_same() -> None:
    assert ask(SLOPE, Random(1)) == ask(SLOPE, Random(1))


def test_examples_stand_after_the_meaning() -> None:
    text = sentences([SLOPE, Gloss("hope", "n", "Hope means a feeling.", counted=False)])(Random(1))
    assert text == "A slope is an elevated geological formation. The slope is high."
