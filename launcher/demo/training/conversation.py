"""Training documents of the demo model: a conversation, or plain text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Message = dict[str, Any]  # in the format of chat routes
Tool = dict[str, Any]  # name, description and parameters of a function, in the format of chat routes


@dataclass(frozen=True, slots=True)
class Conversation:
    """Training document: the messages of a conversation, and the tools offered in it."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    has_reasoning: bool = False  # whether the answers begin with reasoning


DocumentMaker = Callable[[Random], Conversation | str]


def make_one_turn_conversation(question: str, answer: str, system: str = "") -> Conversation:
    """Return a talk of one question and one answer."""
    opening = [{"role": "system", "content": system}] if system else []
    return Conversation([*opening, *make_turn_messages(question, answer)])


def make_turn_messages(question: str, answer: str) -> list[Message]:
    """Return the messages of one turn."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
