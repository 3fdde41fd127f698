"""Training documents of the demo model: a conversation, or plain text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Message = dict[str, Any]  # in the format of chat routes
Tool = dict[str, Any]  # name, description and parameters of a function, in the format of chat routes


@dataclass(frozen=True, slots=True)
class Talk:
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    thinks: bool = False  # whether the answers begin with reasoning


Maker = Callable[[Random], Talk | str]


def asked(question: str, answer: str, system: str = "") -> Talk:
    """Return a talk of one question and one answer."""
    opening = [{"role": "system", "content": system}] if system else []
    return Talk([*opening, *exchange(question, answer)])


def exchange(question: str, answer: str) -> list[Message]:
    """Return the messages of one turn."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
