"""Tests of turning definitions into sentences, and of leaving out indecent words."""

from random import Random

import pytest
from support.prose_checks import draw_conversations, find_text_faults, get_assistant_texts

from launcher.demo.training.corpus.glosses import (
    WordGloss,
    extract_definition,
    extract_example_sentences,
    is_simple_word,
    make_gloss_text_maker,
    make_meaning_question,
    make_meaning_question_maker,
    make_optional_gloss,
)
from launcher.demo.training.corpus.sources.wordnet import WordMeaning

SLOPE_GLOSS = WordGloss("slope", "n", "A slope is an elevated geological formation.", is_countable=True,
                        examples=("The slope is high.",))


def make_meaning(word: str = "slope", text: str = "a raised part of the earth", part: str = "n", subject: int = 17,
                 pointers: tuple[tuple[str, int], ...] = ()) -> WordMeaning:
    return WordMeaning(word, part, subject, pointers, text, 9)


@pytest.mark.parametrize(("meaning", "expected"), [
    (make_meaning(), "A slope is a raised part of the earth."),
    (make_meaning("oven", "a box to bake bread", subject=6), "An oven is a box to bake bread."),
    (make_meaning("hope", "the feeling that all will be well", subject=12),
     "Hope means the feeling that all will be well."),
    (make_meaning("scissors", "a tool with two blades", subject=6), "Scissors means a tool with two blades."),
    (make_meaning("wood", "the hard part of trees", subject=20), "Wood means the hard part of trees."),
    (make_meaning("iron", "a heavy metal used in tools", subject=27), "Iron is a heavy metal used in tools."),
    (make_meaning("roam", "move about without aim", "v", 38), "To roam means to move about without aim."),
    (make_meaning("glad", "showing or causing joy", "a", 0), "Glad means showing or causing joy."),
])
def test_a_definition_becomes_a_sentence(meaning: WordMeaning, expected: str) -> None:
    assert make_optional_gloss(meaning)[0].sentence == expected


@pytest.mark.parametrize("text", [
    "short one", " ".join(["long"] * 17), "a thing to look at and to think of", "not (in any way) `quoted' words"])
def test_unsuitable_definitions_are_left_out(text: str) -> None:
    assert make_optional_gloss(make_meaning(text=text)) == []


@pytest.mark.parametrize(("text", "expected"), [
    ("a wild animal; lives in Africa", "a wild animal"), ("(music) a short song", "a short song"),
    ("a part (of a whole) with a name", "a part with a name"), ("a thing: large or small", "a thing"),
    ("very big; \"a big house\"", "very big"),
])
def test_definition_ends_before_its_additions(text: str, expected: str) -> None:
    assert extract_definition(text) == expected


@pytest.mark.parametrize("meaning", [make_meaning("Paris"), make_meaning("x"), make_meaning("incomprehensible"),
                                     make_meaning("cafe9"), make_meaning(pointers=(("@i", 1),)), make_meaning("gun"),
                                     make_meaning(text="a weapon of old times"), make_meaning("owl")])
def test_unsuitable_words_are_left_out(meaning: WordMeaning) -> None:
    assert not is_simple_word(meaning)


def test_plain_words_are_kept() -> None:
    assert is_simple_word(make_meaning())


def test_examples_contain_the_word() -> None:
    meaning = make_meaning(text='a hill; "the slope was very steep"; "a steep slope"; "they climbed the hill"')
    assert extract_example_sentences(meaning) == ("The slope was very steep.",)


def test_question_names_the_word_and_the_answer_is_its_sentence() -> None:
    for talk in draw_conversations(make_meaning_question_maker([SLOPE_GLOSS])):
        assert "slope" in talk.messages[0]["content"]
        assert get_assistant_texts(talk) == [SLOPE_GLOSS.sentence]
        assert find_text_faults(talk.messages[0]["content"]) == []


def test_same_seed_gives_the_same_question() -> None:
    assert make_meaning_question(SLOPE_GLOSS, Random(1)) == make_meaning_question(SLOPE_GLOSS, Random(1))


def test_examples_follow_the_meaning() -> None:
    text = make_gloss_text_maker([SLOPE_GLOSS,
                                  WordGloss("hope", "n", "Hope means a feeling.", is_countable=False)])(Random(1))
    assert text == "A slope is an elevated geological formation. The slope is high."
