"""Samples that the makers of the corpus draw with a seed, and checks for flaws in them."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

from launcher.demo.training.talk import Maker, Message, Talk

BAD = re.compile(r"\{\w+\}|  | $|^ | [.,?!]|[.,?!][.?!]|,,|None|\ba [aeio]\w")


def made(maker: Maker, count: int = 200, seed: object = 1) -> list[Talk | str]:
    rng = Random(f"{seed}")
    return [maker(rng) for _ in range(count)]


def talks(maker: Maker, count: int = 200, seed: object = 1) -> list[Talk]:
    rng = Random(f"{seed}")
    drawn = (maker(rng) for _ in range(10 * count))
    return list(islice((talk for talk in drawn if isinstance(talk, Talk)), count))


def turns(maker: Maker, count: int = 200) -> Iterator[tuple[str, str]]:
    """Yield every question with its answer, without the reasoning."""
    for talk in talks(maker, count):
        asked = [message for message in talk.messages if message["role"] != "system"]
        for question, answer in zip(asked[::2], asked[1::2], strict=True):
            yield question["content"], spoken(answer)


def spoken(answer: Message) -> str:
    return str(answer["content"].rpartition("</think>\n")[2])


def texts(item: Talk | str) -> list[str]:
    return [item] if isinstance(item, str) else [message["content"] for message in item.messages]


def asked_text(messages: Sequence[Message]) -> str:
    return "\n".join(message["content"] for message in messages if message["role"] in {"user", "system"})


def flaws(maker: Maker, count: int = 200) -> list[str]:
    """Return the lines that are not ASCII or match BAD."""
    lines = [line for item in made(maker, count) for text in texts(item) for line in text.split("\n")]
    return [line for line in lines if not line.isascii() or BAD.search(line)]


def is_repeatable(maker: Maker) -> bool:
    once, again, other = (json.dumps([texts(item) for item in made(maker, 40, seed)]) for seed in (1, 1, 2))
    return once == again != other
