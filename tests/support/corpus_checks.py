"""Samples that the makers of the corpus draw with a seed, and checks for flaws in them."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

from launcher.demo.training.conversation import Conversation, DocumentMaker, Message

FLAW_PATTERN = re.compile(r"\{\w+\}|  | $|^ | [.,?!]|[.,?!][.?!]|,,|None|\ba [aeio]\w")


def draw_items(maker: DocumentMaker, count: int = 200, seed: object = 1) -> list[Conversation | str]:
    rng = Random(f"{seed}")
    return [maker(rng) for _ in range(count)]


def draw_conversations(maker: DocumentMaker, count: int = 200, seed: object = 1) -> list[Conversation]:
    rng = Random(f"{seed}")
    drawn = (maker(rng) for _ in range(10 * count))
    return list(islice((talk for talk in drawn if isinstance(talk, Conversation)), count))


def iter_questions_and_answers(maker: DocumentMaker, count: int = 200) -> Iterator[tuple[str, str]]:
    """Yield every question with its answer, without the reasoning."""
    for talk in draw_conversations(maker, count):
        chat_messages = [message for message in talk.messages if message["role"] != "system"]
        for question, answer in zip(chat_messages[::2], chat_messages[1::2], strict=True):
            yield question["content"], strip_reasoning(answer)


def strip_reasoning(answer: Message) -> str:
    return str(answer["content"].rpartition("</think>\n")[2])


def get_message_texts(item: Conversation | str) -> list[str]:
    return [item] if isinstance(item, str) else [message["content"] for message in item.messages]


def join_prompt_texts(messages: Sequence[Message]) -> str:
    return "\n".join(message["content"] for message in messages if message["role"] in {"user", "system"})


def find_flawed_lines(maker: DocumentMaker, count: int = 200) -> list[str]:
    """Return the lines that are not ASCII or match FLAW_PATTERN."""
    lines = [line for item in draw_items(maker, count) for text in get_message_texts(item) for line in text.split("\n")]
    return [line for line in lines if not line.isascii() or FLAW_PATTERN.search(line)]


def is_deterministic(maker: DocumentMaker) -> bool:
    first, second, with_other_seed = (json.dumps([get_message_texts(item) for item in draw_items(maker, 40, seed)])
                                      for seed in (1, 1, 2))
    return first == second != with_other_seed
