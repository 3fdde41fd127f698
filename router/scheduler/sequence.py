"""State of one request being served: tokens so far, blocks held, tokens sent to the shards for computation.

The rules by which this state changes are in the modules that use it, mainly `running.py`, `under_way.py`,
`results.py`, `sequence_table.py` and `scheduler.py`.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from router.request import Request, Resource
from router.scheduler.timeline import Story

SECONDS_PER_PRIORITY = 10.0


class State(Enum):
    WAITING = auto()  # in the queue, holds no blocks
    RUNNING = auto()  # in a batch
    YIELDING = auto()  # left its batch; returns to the queue once its tokens in flight are answered
    ENDING = auto()  # left its batch, or was in none (pooling): the steps in flight are its last
    OVER = auto()  # its terminal event was returned


@dataclass(slots=True, eq=False)
class Sequence:
    request: Request
    number: int
    arrival: float
    generated: list[int] = field(default_factory=list)
    state: State = State.WAITING
    blocks: list[int] = field(default_factory=list)
    length: int = field(init=False)  # prompt and generated tokens; stored because every step reads it
    # Number of tokens when it last entered a batch; it is ready to decode when all of them are computed.
    given: int = 0
    # Tokens sent to the shards for computation, answered or not.
    computed: int = 0
    # Unanswered steps that will produce tokens for it.
    in_flight: int = 0
    # Number of its leading blocks that are published in the prefix cache, and the hashes of all blocks hashed so far.
    num_published: int = 0
    names: list[bytes] = field(init=False)
    paid: int = 0  # leading prompt tokens that its tenant is not charged for again
    num_yields: int = 0
    num_deaths: int = 0
    held: bool = False  # its client does not read; it may not run
    foreseen_wait: float | None = None  # seconds, predicted at its arrival without bias correction; None once started
    lacks: Resource | None = None  # while it waits: the first resource it needs that is not loaded
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
        """Number of tokens that may still be generated, if each step in flight yields one."""
        return self.request.max_length - self.length - self.in_flight

    @property
    def rank(self) -> tuple[float, int]:
        """Sort key, lowest first: one level of priority equals SECONDS_PER_PRIORITY seconds of age."""
        return (self.arrival - SECONDS_PER_PRIORITY * self.request.priority, self.number)

    def forget_cache(self) -> list[int]:
        """Reset the fields about the cache; return the blocks that the sequence held."""
        blocks, self.blocks = self.blocks, []
        self.given = self.computed = self.num_published = 0
        return blocks

    def tokens(self, start: int, end: int) -> list[int]:
        """Return the tokens from `start` to `end`, counted over prompt and generated tokens."""
        prompt = self.request.prompt
        behind = len(prompt)
        return [*prompt[start:end], *self.generated[max(0, start - behind):max(0, end - behind)]]
