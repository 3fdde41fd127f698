"""What happened to one request and when: intervals of time with one cause each, without a gap between them.

Knows nothing of why a cause was given; whoever moves a sequence says so here.
"""

from enum import StrEnum


class Cause(StrEnum):
    """What a request spends its time on. All before `PREFILL` is waiting."""

    QUEUE = "queue"  # others go first
    TENANT = "tenant"  # its tenant had its share, others go first
    GROUP = "group"  # another group runs, or its own waits for more (--batching static)
    BATCH = "batch"  # as many run as may (--max-batch-size)
    BLOCKS = "blocks"  # the cache has no room for it
    BUDGET = "budget"  # the step's prompt tokens are spent, or the stall promise leaves none
    PREFIX = "prefix"  # a running request computes a part of its prompt
    ADAPTER = "adapter"  # not loaded yet
    GRAMMAR = "grammar"  # not compiled yet
    TRIAL = "trial"  # steps failed: suspects are tried before it
    READER = "reader"  # its client does not read
    YIELDED = "yielded"  # gave its blocks to others
    SHARDS = "shards"  # there are none
    PREFILL = "prefill"
    DECODE = "decode"


RUNNING = frozenset({Cause.PREFILL, Cause.DECODE})
MOST_TURNS = 512  # beyond, the causes of waiting are no longer told apart


class Story:
    """Begins with the request's coming; `end` closes the last interval."""

    __slots__ = ("_turns", "cached_tokens", "ended")

    def __init__(self, began: float, cause: Cause = Cause.QUEUE) -> None:
        self._turns = [(began, cause)]
        self.cached_tokens = 0  # of the prompt, found in the cache when it first started
        self.ended: float | None = None

    @property
    def began(self) -> float:
        return self._turns[0][0]

    @property
    def cause(self) -> Cause:
        return self._turns[-1][1]

    @property
    def has_started(self) -> bool:
        return any(cause is Cause.PREFILL for _, cause in self._turns)

    @property
    def num_yields(self) -> int:
        """How often it gave its blocks to others."""
        return sum(cause is Cause.YIELDED for _, cause in self._turns)

    def turn(self, cause: Cause, now: float) -> None:
        """From now on it is this."""
        last = self._turns[-1][1]
        if cause is last or self.ended is not None:
            return
        if len(self._turns) >= MOST_TURNS and cause not in RUNNING and last not in RUNNING:
            return
        self._turns.append((now, cause))

    def end(self, now: float) -> None:
        if self.ended is None:
            self.ended = now

    def intervals(self, now: float) -> list[tuple[Cause, float, float]]:
        """(cause, from, to), each beginning where the one before ended, the last ending now if it has not ended."""
        ends = [start for start, _ in self._turns[1:]] + [now if self.ended is None else self.ended]
        return [(cause, start, end) for (start, cause), end in zip(self._turns, ends, strict=True)]

    def seconds(self, now: float) -> dict[Cause, float]:
        """The sum of each cause."""
        sums: dict[Cause, float] = {}
        for cause, start, end in self.intervals(now):
            sums[cause] = sums.get(cause, 0.0) + end - start
        return sums
