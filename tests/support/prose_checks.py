"""Checks for flaws in generated text, and samples of such text from its makers."""

import re
from collections.abc import Callable, Iterable
from random import Random

from launcher.demo.training.corpus.turns import Turn
from launcher.demo.training.talk import Maker, Talk

SPOKEN_WITH_Y = ("unicorn",)


def faults(text: str) -> list[str]:
    """Return unfilled slots, misplaced spaces, wrong articles, and a mark for text that is not ASCII."""
    found = re.findall(r"[{}\[\]|]|  +| [.,!?]|^\s|\s$", text)
    found += [match[0] for match in re.finditer(r"\b([Aa]n?) ([a-z]+)", text) if not agrees(match[1], match[2])]
    return found if text.isascii() else [*found, "not ASCII"]


def agrees(article: str, word: str) -> bool:
    vowel = word[0] in "aeiou" and not word.startswith(SPOKEN_WITH_Y)
    return (article.lower() == "an") == vowel


def made(maker: Maker, count: int = 200, seed: int = 7) -> list[Talk | str]:
    rng = Random(seed)
    return [maker(rng) for _ in range(count)]


def talks(maker: Maker, count: int = 200) -> list[Talk]:
    return [each for each in made(maker, count) if isinstance(each, Talk)]


def turns(kind: Callable[[Random], Iterable[Turn]], count: int = 200) -> list[Turn]:
    rng = Random(7)
    return [turn for _ in range(count) for turn in kind(rng)]


def answers(talk: Talk) -> list[str]:
    return [message["content"] for message in talk.messages if message["role"] == "assistant"]


def sentences(text: str) -> int:
    """Count sentences; a sentence inside a quotation is part of the one around it."""
    return len(re.findall(r"[.!?](?= |$)|[.!?]\"(?= [A-Z\"]|$)", re.sub(r"\"[^\"]*?[^.!?\"]*[.!?] ", '"', text)))
