"""One turn of a conversation, independent of the conversation that it becomes part of."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple


class ConversationTurn(NamedTuple):
    """A question, its answer, and the short form of the answer."""

    question: str
    answer: str
    brief_answer: str = ""  # the short answer, if it differs


TurnsMaker = Callable[[Random], list[ConversationTurn]]  # makes related turns, in order
