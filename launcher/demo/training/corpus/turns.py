"""One turn of a conversation, independent of the conversation that it becomes part of."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Turn(NamedTuple):
    question: str
    answer: str
    brief: str = ""  # the short answer, if it differs


Turns = Callable[[Random], list[Turn]]  # makes related turns, in order
