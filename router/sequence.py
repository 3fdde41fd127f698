"""One request on its way: tokens so far, blocks held, how much of it the shards were told to compute.

State only; who changes it and why stands in `running.py` and `scheduler.py`.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from router.request import Request, Resource
from router.story import Story

SECONDS_PER_PRIORITY = 10.0


class State(Enum):
    WAITING = auto()  # in the queue, holds nothing
    RUNNING = auto()  # in a batch
    YIELDING = auto()  # left its batch, waits for tokens under way and then again in the queue
    ENDING = auto()  # left its batch, or was in none: what is under way is the last of it
    OVER = auto()  # its terminal event was given


@dataclass(slots=True, eq=False)
class Sequence:
    request: Request
    number: int
    arrival: float
    generated: list[int] = field(default_factory=list)
    state: State = State.WAITING
    blocks: list[int] = field(default_factory=list)
    length: int = field(init=False)  # prompt and generated; counted here, since every step asks for it
    # Tokens it was sent with when it last entered a batch; it is ready when all of them are computed.
    given: int = 0
    # Tokens whose computing was sent, answered or not.
    computed: int = 0
    # Unanswered steps that will yield tokens for it.
    in_flight: int = 0
    # Full blocks of its own, from the first on, that others were told of, and the names of all that are known.
    num_published: int = 0
    names: list[bytes] = field(init=False)
    paid: int = 0  # tokens whose computing its tenant was charged for
    num_yields: int = 0
    num_deaths: int = 0
    held: bool = False  # its client does not read; it may not run
    foreseen_wait: float | None = None  # when it came, until it starts
    lacks: Resource | None = None  # while it waits: what it needs and is not on the shards
    deadline: float = field(init=False)
    story: Story = field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.request.prompt) + len(self.generated)
        self.names = list(self.request.block_hashes)
        self.story = Story(self.arrival)
        timeout = self.request.timeout
        self.deadline = inf if timeout is None else self.arrival + timeout

    def accept(self, tokens: Rows[int]) -> None:
        self.generated += tokens
        self.length += len(tokens)

    @property
    def is_ready(self) -> bool:
        return self.computed >= self.given

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be generated, those under way counted as one a step."""
        return self.request.max_length - self.length - self.in_flight

    @property
    def rank(self) -> tuple[float, int]:
        """Lower goes first: a level of priority is worth some seconds of age."""
        return (self.arrival - SECONDS_PER_PRIORITY * self.request.priority, self.number)

    def forget_cache(self) -> list[int]:
        """Nothing of it stands in the cache any more; returns the blocks it held."""
        blocks, self.blocks = self.blocks, []
        self.given = self.computed = self.num_published = 0
        return blocks

    def tokens(self, start: int, end: int) -> list[int]:
        """Of prompt and generated."""
        prompt = self.request.prompt
        behind = len(prompt)
        return [*prompt[start:end], *self.generated[max(0, start - behind):max(0, end - behind)]]
