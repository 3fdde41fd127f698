"""What the embedded model is taught: a conversation, or plain text to go on with.

Knows nothing of words, templates or tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Message = dict[str, Any]  # as chat routes take it
Tool = dict[str, Any]  # a function's name, description and parameters, as chat routes take it


@dataclass(frozen=True, slots=True)
class Talk:
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    thinks: bool = False  # the answers begin with what was thought


Maker = Callable[[Random], Talk | str]


def asked(question: str, answer: str, system: str = "") -> Talk:
    """One question, one answer."""
    opening = [{"role": "system", "content": system}] if system else []
    return Talk([*opening, *exchange(question, answer)])


def exchange(question: str, answer: str) -> list[Message]:
    """One turn of a longer talk."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
