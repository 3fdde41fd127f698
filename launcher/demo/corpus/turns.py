"""One question of a conversation and its answer, before it is known what conversation it stands in."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Turn(NamedTuple):
    question: str
    answer: str
    brief: str = ""  # the answer for who asks for short ones, where it differs


Turns = Callable[[Random], list[Turn]]  # those that belong together, one after the other
