"""Tests of rewriting answers in other styles."""

import json
from random import Random

import pytest
from support.prose_checks import draw_conversations, draw_items, get_assistant_texts

from launcher.demo.training.conversation import Conversation
from launcher.demo.training.corpus.answer_styles import (
    REWRITERS_BY_STYLE,
    make_restyled_document_maker,
    rewrite_answers,
    rewrite_as_json,
    rewrite_as_king_james_bible,
    rewrite_as_pirate,
    rewrite_in_capitals,
)
from launcher.demo.training.corpus.dialogues import make_dialogue
from launcher.demo.training.corpus.stories import make_story_conversation, make_story_text


@pytest.mark.parametrize(("text", "expected"), [
    ("My friend is here.", "Me matey be here."), ("Are you sailing?", "Be ye sailin'?"),
    ("Sing in spring.", "Sing in spring."),
    ("Nothing is lost.", "Nothing be lost."), ("No, it is not.", "Nay, it be not."), ("no hat", "no hat"),
])
def test_pirate_voice_replaces_words(text: str, expected: str) -> None:
    assert expected in rewrite_as_pirate(text, Random(1))


def test_pirate_voice_has_its_own_openings() -> None:
    first_words = {rewrite_as_pirate("It is late.", Random(seed)).split()[0] for seed in range(60)}
    assert first_words == {"Arr!", "Arr,", "Ahoy!", "Yo", "Shiver", "Ho,", "Avast!"}


def test_shouting_voice_ends_sentences_with_exclamation_marks() -> None:
    assert rewrite_in_capitals('It is 3.5 km. "Go." Why?') == 'IT IS 3.5 KM! "GO!" WHY?'


def test_json_voice_has_question_and_answer() -> None:
    assert json.loads(rewrite_as_json('Say "hi"', "hi\nyou")) == {"question": 'Say "hi"', "answer": "hi\nyou"}


def test_bible_voice_sometimes_repeats_the_question() -> None:
    answers = [rewrite_as_king_james_bible("What is snow?", "Snow is white.", Random(seed)) for seed in range(60)]
    assert 3 < sum("the man asked, saying, What is snow?" in text for text in answers) < 30
    assert all("snow is white" in text for text in answers)


@pytest.mark.parametrize("name", REWRITERS_BY_STYLE)
def test_voices_change_only_the_answers(name: str) -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is late."}]
    after = rewrite_answers(before, REWRITERS_BY_STYLE[name], Random(1))
    assert after[0] == before[0]
    assert after[1]["content"] != before[1]["content"]


@pytest.mark.parametrize("name", REWRITERS_BY_STYLE)
def test_same_seed_gives_the_same_talks(name: str) -> None:
    makers = [make_restyled_document_maker(make_story_conversation, REWRITERS_BY_STYLE[name]) for _ in range(2)]
    assert draw_items(makers[0], 50) == draw_items(makers[1], 50)


def test_json_voice_answers_are_objects() -> None:
    for talk in draw_conversations(make_restyled_document_maker(make_dialogue, REWRITERS_BY_STYLE["json"])):
        assert all(isinstance(json.loads(answer), dict) for answer in get_assistant_texts(talk))


def test_shouting_voice_answers_are_in_capitals() -> None:
    make_document = make_restyled_document_maker(make_dialogue, REWRITERS_BY_STYLE["shout"])
    answers = [answer for talk in draw_conversations(make_document) for answer in get_assistant_texts(talk)]
    assert [answer for answer in answers if answer != answer.upper()] == []


def test_plain_text_becomes_an_answer() -> None:
    talk = make_restyled_document_maker(make_story_text, REWRITERS_BY_STYLE["shout"])(Random(1))
    assert isinstance(talk, Conversation)
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]


def test_tool_calls_and_thoughts_are_not_changed() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add"}}]}
    reasoned_answer = {"role": "assistant", "content": "<think>\n2 and 2.\n</think>\nIt is 4."}
    assert rewrite_answers([call, reasoned_answer], REWRITERS_BY_STYLE["shout"], Random(1)) == [
        call, reasoned_answer | {"content": "<think>\n2 and 2.\n</think>\nIT IS 4!"}]
