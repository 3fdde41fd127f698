from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from launcher.demo.training.conversation import Conversation
from launcher.demo.training.corpus.answer_styles import REWRITERS_BY_STYLE
from launcher.demo.training.corpus.mixture import (
    BASE_SHARES,
    STYLED_DOCUMENT_SHARES,
    generate_documents,
    make_styled_document_shares,
)


def test_same_seed_gives_the_same_documents() -> None:
    one, same, other = (list(islice(generate_documents(BASE_SHARES, seed), 200)) for seed in (1, 1, 2))
    assert one == same != other


def test_kinds_come_as_often_as_their_shares() -> None:
    counts = Counter(islice(generate_documents({lambda _: "often": 0.9, lambda _: "seldom": 0.1}, 3), 1000))
    assert 850 < counts["often"] < 950


@pytest.mark.parametrize("style", sorted(REWRITERS_BY_STYLE.keys() - {"kjv"}))
def test_voice_changes_every_answer(style: str) -> None:
    shares = make_styled_document_shares(style, Path("nowhere"))
    assert len(shares) == len(STYLED_DOCUMENT_SHARES)
    plain, rewritten = (list(islice(generate_documents(STYLED_DOCUMENT_SHARES, 5), 50)),
                        list(islice(generate_documents(shares, 5), 50)))
    answers = [talk.messages[-1]["content"] for talk in rewritten if isinstance(talk, Conversation)]
    assert len(answers) == len(rewritten)
    assert plain != rewritten
    if style == "shout":
        assert all(answer.rpartition("</think>\n")[2].isupper() for answer in answers if any(map(str.isalpha, answer)))
    if style == "json":
        assert all(answer.rpartition("</think>\n")[2].startswith('{"question": ') for answer in answers)
