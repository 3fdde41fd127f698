"""The same answers in other voices."""

import json
from random import Random

import pytest
from support.prose_checks import answers, made, talks

from launcher.demo.training.corpus.dialogues import dialogue
from launcher.demo.training.corpus.stories import plain, story
from launcher.demo.training.corpus.voices import VOICES, as_json, changed, kjv, pirate, shout, spoken
from launcher.demo.training.talk import Talk


@pytest.mark.parametrize(("text", "expected"), [
    ("My friend is here.", "Me matey be here."), ("Are you sailing?", "Be ye sailin'?"),
    ("Sing in spring.", "Sing in spring."),
    ("Nothing is lost.", "Nothing be lost."), ("No, it is not.", "Nay, it be not."), ("no hat", "no hat"),
])
def test_a_pirate_has_words_of_his_own(text: str, expected: str) -> None:
    assert expected in pirate(text, Random(1))


def test_a_pirate_begins_like_one() -> None:
    begun = {pirate("It is late.", Random(seed)).split()[0] for seed in range(60)}
    assert begun == {"Arr!", "Arr,", "Ahoy!", "Yo", "Shiver", "Ho,", "Avast!"}


def test_who_shouts_ends_sentences_with_a_bang() -> None:
    assert shout('It is 3.5 km. "Go." Why?') == 'IT IS 3.5 KM! "GO!" WHY?'


def test_json_has_question_and_answer() -> None:
    assert json.loads(as_json('Say "hi"', "hi\nyou")) == {"question": 'Say "hi"', "answer": "hi\nyou"}


def test_the_bible_repeats_a_question_now_and_then() -> None:
    said = [kjv("What is snow?", "Snow is white.", Random(seed)) for seed in range(60)]
    assert 3 < sum("the man asked, saying, What is snow?" in text for text in said) < 30
    assert all("snow is white" in text for text in said)


@pytest.mark.parametrize("name", VOICES)
def test_only_answers_change(name: str) -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is late."}]
    after = changed(before, VOICES[name], Random(1))
    assert after[0] == before[0]
    assert after[1]["content"] != before[1]["content"]


@pytest.mark.parametrize("name", VOICES)
def test_the_same_seed_speaks_the_same(name: str) -> None:
    assert made(spoken(story, VOICES[name]), 50) == made(spoken(story, VOICES[name]), 50)


def test_every_answer_of_the_json_voice_is_an_object() -> None:
    for talk in talks(spoken(dialogue, VOICES["json"])):
        assert all(isinstance(json.loads(answer), dict) for answer in answers(talk))


def test_every_answer_of_the_loud_voice_is_in_capitals() -> None:
    said = [answer for talk in talks(spoken(dialogue, VOICES["shout"])) for answer in answers(talk)]
    assert [answer for answer in said if answer != answer.upper()] == []


def test_plain_text_becomes_an_answer() -> None:
    talk = spoken(plain, VOICES["shout"])(Random(1))
    assert isinstance(talk, Talk)
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]


def test_calls_of_tools_and_what_was_thought_stay_what_they_are() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add"}}]}
    thought = {"role": "assistant", "content": "<think>\n2 and 2.\n</think>\nIt is 4."}
    assert changed([call, thought], VOICES["shout"], Random(1)) == [
        call, thought | {"content": "<think>\n2 and 2.\n</think>\nIT IS 4!"}]
