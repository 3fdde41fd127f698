from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from launcher.demo.training.corpus.mixture import OWN, SPOKEN, documents, voiced
from launcher.demo.training.corpus.voices import VOICES
from launcher.demo.training.talk import Talk


def test_the_same_seed_gives_the_same_documents() -> None:
    one, same, other = (list(islice(documents(OWN, seed), 200)) for seed in (1, 1, 2))
    assert one == same != other


def test_each_kind_comes_as_often_as_its_share_says() -> None:
    drawn = Counter(islice(documents({lambda _: "often": 0.9, lambda _: "seldom": 0.1}, 3), 1000))
    assert 850 < drawn["often"] < 950


@pytest.mark.parametrize("voice", sorted(VOICES.keys() - {"kjv"}))
def test_a_voice_answers_in_its_own_way(voice: str) -> None:
    shares = voiced(voice, Path("nowhere"))
    assert len(shares) == len(SPOKEN)
    plain, spoken = list(islice(documents(SPOKEN, 5), 50)), list(islice(documents(shares, 5), 50))
    answers = [talk.messages[-1]["content"] for talk in spoken if isinstance(talk, Talk)]
    assert len(answers) == len(spoken)
    assert plain != spoken
    if voice == "shout":
        assert all(answer.rpartition("</think>\n")[2].isupper() for answer in answers if any(map(str.isalpha, answer)))
    if voice == "json":
        assert all(answer.rpartition("</think>\n")[2].startswith('{"question": ') for answer in answers)
