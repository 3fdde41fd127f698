"""Tests that stories are coherent and about the requested subject."""

import re
from random import Random

import pytest
from support.prose_checks import answers, faults, made, sentences, talks

from launcher.demo.training.corpus import stories
from launcher.demo.training.corpus.stories import Cast, begun, cast, plain, story, tell, titled
from launcher.demo.training.corpus.words import BOYS, GIRLS
from launcher.demo.training.talk import Maker

FOX = Cast("Mia", "fox", "brave", "an owl", "red ball", "in the forest", she=True)


def test_the_same_seed_tells_the_same_stories() -> None:
    assert made(story) == made(story)
    assert made(story, seed=1) != made(story, seed=2)


@pytest.mark.parametrize("maker", [story, begun])
def test_talks_are_written_without_faults(maker: Maker) -> None:
    texts = [message["content"] for talk in talks(maker) for message in talk.messages]
    assert [(text, faults(text)) for text in texts if faults(text)] == []


@pytest.mark.parametrize("maker", [plain, titled])
def test_plain_stories_are_written_without_faults(maker: Maker) -> None:
    texts = [str(text) for text in made(maker)]
    assert [(text, faults(text)) for text in texts if faults(text)] == []


def test_every_story_has_three_to_six_sentences() -> None:
    rng = Random(7)
    assert {len(tell(cast(rng), rng, rng.choice(stories.SORTS))) for _ in range(300)} == {3, 4, 5, 6}


@pytest.mark.parametrize("sort", ["story", "short story", "bedtime story", "funny story"])
def test_hero_friend_thing_and_place_are_in_every_story(sort: str) -> None:
    rng = Random(7)
    for _ in range(200):
        text = " ".join(tell(FOX, rng, sort))
        assert [word for word in ("Mia", "brave fox", "owl", "red ball", "in the forest")
                if word not in text.replace("In the forest", "in the forest")] == []


@pytest.mark.parametrize(("she", "others"), [(True, "he|him|his"), (False, "she|her")])
def test_pronouns_are_those_of_the_hero(she: bool, others: str) -> None:
    rng = Random(7)
    hero = Cast("Kim", "fox", "", "an owl", "ball", "on a hill", she=she)
    wrong = [text for text in (" ".join(tell(hero, rng)) for _ in range(300))
             if re.search(rf"\b({others})\b", text, re.IGNORECASE)]
    assert wrong == []


def test_names_go_with_their_pronouns() -> None:
    rng = Random(7)
    assert all(known.name in (GIRLS if known.she else BOYS) for known in (cast(rng) for _ in range(200)))


def test_what_a_request_names_is_in_the_story() -> None:
    ends = r"(?= and | with | named | called |,| in | on | by | near | at | under | please|[.?!]|$)"
    for talk in talks(story, 400):
        asked, told = talk.messages[0]["content"], talk.messages[1]["content"]
        about = re.search(rf"(?<!ow) about (?:an? )?(.+?){ends}", asked)
        assert not about or about[1] == "life" or about[1].lower() in told.lower(), (asked, told)


def test_a_bedtime_story_ends_with_sleep() -> None:
    rng = Random(7)
    ends = [tell(FOX, rng, "bedtime story")[-1] for _ in range(50)]
    assert [end for end in ends if not re.search("sleep|slept|dreamed", end)] == []


def test_a_question_about_the_story_is_answered_from_it() -> None:
    found = 0
    for talk in talks(story, 400):
        for told, answer in zip(answers(talk), answers(talk)[1:], strict=False):
            if answer.startswith("The name of the ") and sentences(told) > 1:
                assert answer.split()[-1].rstrip(".") in told
                found += 1
    assert found > 5


def test_what_is_begun_goes_on_about_the_same_hero() -> None:
    for talk in talks(begun):
        name = next(name for name in GIRLS + BOYS if name in re.findall(r"\w+", talk.messages[0]["content"]))
        assert re.search(rf"\b({name}|{'she' if name in GIRLS else 'he'})\b", answers(talk)[0], re.IGNORECASE)


def test_a_title_names_who_the_story_is_about() -> None:
    for text in made(titled):
        title, _, told = str(text).partition("\n\n")
        words = set(title.lower().split()) - {"the", "and", "story", "of"}
        assert words & set(re.findall(r"\w+", told.lower()))
