"""Tests that stories are coherent and about the requested subject."""

import re
from random import Random

import pytest
from support.prose_checks import count_sentences, draw_conversations, draw_items, find_text_faults, get_assistant_texts

from launcher.demo.training.conversation import DocumentMaker
from launcher.demo.training.corpus import stories
from launcher.demo.training.corpus.stories import (
    StoryCast,
    choose_cast,
    make_continuation_conversation,
    make_story_conversation,
    make_story_sentences,
    make_story_text,
    make_titled_story_text,
)
from launcher.demo.training.corpus.words import BOY_NAMES, GIRL_NAMES

FOX_CAST = StoryCast("Mia", "fox", "brave", "an owl", "red ball", "in the forest", is_female=True)


def test_same_seed_gives_the_same_stories() -> None:
    assert draw_items(make_story_conversation) == draw_items(make_story_conversation)
    assert draw_items(make_story_conversation, seed=1) != draw_items(make_story_conversation, seed=2)


@pytest.mark.parametrize("maker", [make_story_conversation, make_continuation_conversation])
def test_talks_are_written_without_faults(maker: DocumentMaker) -> None:
    texts = [message["content"] for talk in draw_conversations(maker) for message in talk.messages]
    assert [(text, find_text_faults(text)) for text in texts if find_text_faults(text)] == []


@pytest.mark.parametrize("maker", [make_story_text, make_titled_story_text])
def test_plain_stories_are_written_without_faults(maker: DocumentMaker) -> None:
    texts = [str(text) for text in draw_items(maker)]
    assert [(text, find_text_faults(text)) for text in texts if find_text_faults(text)] == []


def test_every_story_has_three_to_six_sentences() -> None:
    rng = Random(7)
    assert {len(make_story_sentences(choose_cast(rng), rng, rng.choice(stories.STORY_SORTS)))
            for _ in range(300)} == {3, 4, 5, 6}


@pytest.mark.parametrize("sort", ["story", "short story", "bedtime story", "funny story"])
def test_hero_friend_thing_and_place_are_in_every_story(sort: str) -> None:
    rng = Random(7)
    for _ in range(200):
        text = " ".join(make_story_sentences(FOX_CAST, rng, sort))
        assert [word for word in ("Mia", "brave fox", "owl", "red ball", "in the forest")
                if word not in text.replace("In the forest", "in the forest")] == []


@pytest.mark.parametrize(("she", "other_pronouns"), [(True, "he|him|his"), (False, "she|her")])
def test_pronouns_match_the_hero(she: bool, other_pronouns: str) -> None:
    rng = Random(7)
    hero = StoryCast("Kim", "fox", "", "an owl", "ball", "on a hill", is_female=she)
    wrong = [text for text in (" ".join(make_story_sentences(hero, rng)) for _ in range(300))
             if re.search(rf"\b({other_pronouns})\b", text, re.IGNORECASE)]
    assert wrong == []


def test_names_match_their_pronouns() -> None:
    rng = Random(7)
    assert all(known.name in (GIRL_NAMES if known.is_female else BOY_NAMES)
               for known in (choose_cast(rng) for _ in range(200)))


def test_story_contains_what_the_request_names() -> None:
    ends = r"(?= and | with | named | called |,| in | on | by | near | at | under | please|[.?!]|$)"
    for talk in draw_conversations(make_story_conversation, 400):
        request, story = talk.messages[0]["content"], talk.messages[1]["content"]
        match = re.search(rf"(?<!ow) about (?:an? )?(.+?){ends}", request)
        assert not match or match[1] == "life" or match[1].lower() in story.lower(), (request, story)


def test_a_bedtime_story_ends_with_sleep() -> None:
    rng = Random(7)
    ends = [make_story_sentences(FOX_CAST, rng, "bedtime story")[-1] for _ in range(50)]
    assert [end for end in ends if not re.search("sleep|slept|dreamed", end)] == []


def test_question_about_the_story_is_answered_from_it() -> None:
    num_answers = 0
    for talk in draw_conversations(make_story_conversation, 400):
        for story, answer in zip(get_assistant_texts(talk), get_assistant_texts(talk)[1:], strict=False):
            if answer.startswith("The name of the ") and count_sentences(story) > 1:
                assert answer.split()[-1].rstrip(".") in story
                num_answers += 1
    assert num_answers > 5


def test_continued_story_keeps_its_hero() -> None:
    for talk in draw_conversations(make_continuation_conversation):
        name = next(name for name in GIRL_NAMES + BOY_NAMES if name in re.findall(r"\w+", talk.messages[0]["content"]))
        assert re.search(rf"\b({name}|{'she' if name in GIRL_NAMES else 'he'})\b", get_assistant_texts(talk)[0],
                         re.IGNORECASE)


def test_title_names_the_subject_of_the_story() -> None:
    for text in draw_items(make_titled_story_text):
        title, _, story = str(text).partition("\n\n")
        words = set(title.lower().split()) - {"the", "and", "story", "of"}
        assert words & set(re.findall(r"\w+", story.lower()))
