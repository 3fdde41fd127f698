"""Timeline of one request: contiguous intervals of time, each with one cause."""

from enum import StrEnum


class Cause(StrEnum):
    """Reason for an interval: why the request waits, or in which phase it runs. All before `PREFILL` are waiting."""

    QUEUE = "queue"  # other requests are ahead
    TENANT = "tenant"  # its tenant has had its share: requests of other tenants are ahead
    GROUP = "group"  # another group runs, or its own group waits for more requests (--batching static)
    BATCH = "batch"  # the batch is full (--max-batch-size)
    BLOCKS = "blocks"  # too few free blocks in the KV cache
    BUDGET = "budget"  # the step has no prompt tokens left (--max-batch-prefill-tokens, --max-decode-stall-ms)
    PREFIX = "prefix"  # a running request is computing the next block of the same prompt prefix
    ADAPTER = "adapter"  # not loaded yet
    GRAMMAR = "grammar"  # not compiled yet
    TRIAL = "trial"  # steps failed: suspects run first
    READER = "reader"  # its client does not read the stream
    YIELDED = "yielded"  # preempted
    SHARDS = "shards"  # no shards are ready
    PREFILL = "prefill"
    DECODE = "decode"


RUNNING = frozenset({Cause.PREFILL, Cause.DECODE})
MOST_TURNS = 512  # intervals; beyond, a change between two causes of waiting is not recorded


class Story:
    """Timeline that begins when the request arrives; `end` closes the last interval."""

    __slots__ = ("_turns", "cached_tokens", "ended")

    def __init__(self, began: float, cause: Cause = Cause.QUEUE) -> None:
        self._turns = [(began, cause)]
        self.cached_tokens = 0  # prompt tokens found in the prefix cache when the request first started
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
        """Number of preemptions."""
        return sum(cause is Cause.YIELDED for _, cause in self._turns)

    def turn(self, cause: Cause, now: float) -> None:
        """Begin an interval with this cause, unless it is the current one or the timeline has ended."""
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
        """Return contiguous (cause, start, end); the last one ends at `now` if the request has not ended."""
        ends = [start for start, _ in self._turns[1:]] + [now if self.ended is None else self.ended]
        return [(cause, start, end) for (start, cause), end in zip(self._turns, ends, strict=True)]

    def seconds(self, now: float) -> dict[Cause, float]:
        """Return the total seconds of each cause."""
        sums: dict[Cause, float] = {}
        for cause, start, end in self.intervals(now):
            sums[cause] = sums.get(cause, 0.0) + end - start
        return sums
