"""Timeline of one request: contiguous intervals of time, each in one phase."""

from enum import StrEnum


class RequestPhase(StrEnum):
    """Phase of a request: what it waits for, or what runs. In JSON and metrics it is called `cause`.

    In all phases before `PREFILL` the request waits.
    """

    QUEUE = "queue"  # other requests are ahead
    OTHER_TENANTS = "tenant"  # its tenant has had its share: requests of other tenants are ahead
    STATIC_GROUP = "group"  # another group runs, or its own group waits for more requests (--batching static)
    BATCH_FULL = "batch"  # the batch is full (--max-batch-size)
    NO_FREE_BLOCKS = "blocks"  # too few free blocks in the KV cache
    PREFILL_BUDGET = "budget"  # the step has no prompt tokens left (--max-batch-prefill-tokens, --max-decode-stall-ms)
    SHARED_PREFIX = "prefix"  # a running request is computing the next block of the same prompt prefix
    ADAPTER = "adapter"  # not loaded yet
    GRAMMAR = "grammar"  # not compiled yet
    FAULT_ISOLATION = "trial"  # steps failed: suspects run first
    SLOW_CLIENT = "reader"  # its client does not read the stream
    PREEMPTED = "yielded"  # preempted
    NO_SHARDS = "shards"  # no shards are ready
    PREFILL = "prefill"
    DECODE = "decode"


RUNNING_PHASES = frozenset({RequestPhase.PREFILL, RequestPhase.DECODE})
MAX_INTERVALS = 512  # intervals; beyond, a change between two waiting phases is not recorded


class RequestTimeline:
    """Timeline that begins when the request arrives; `end` closes the last interval."""

    __slots__ = ("_phase_starts", "ended_at", "num_prefix_hit_tokens")

    def __init__(self, submitted_at: float, phase: RequestPhase = RequestPhase.QUEUE) -> None:
        self._phase_starts = [(submitted_at, phase)]
        self.num_prefix_hit_tokens = 0  # prompt tokens found in the prefix cache when the request first started
        self.ended_at: float | None = None

    @property
    def submitted_at(self) -> float:
        return self._phase_starts[0][0]

    @property
    def phase(self) -> RequestPhase:
        return self._phase_starts[-1][1]

    @property
    def has_started(self) -> bool:
        return any(phase is RequestPhase.PREFILL for _, phase in self._phase_starts)

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions."""
        return sum(phase is RequestPhase.PREEMPTED for _, phase in self._phase_starts)

    def enter_phase(self, phase: RequestPhase, now: float) -> None:
        """Begin an interval in this phase, unless it is the current one or the timeline has ended."""
        current_phase = self._phase_starts[-1][1]
        if phase is current_phase or self.ended_at is not None:
            return
        if (len(self._phase_starts) >= MAX_INTERVALS and phase not in RUNNING_PHASES
            and current_phase not in RUNNING_PHASES):
            return
        self._phase_starts.append((now, phase))

    def end(self, now: float) -> None:
        if self.ended_at is None:
            self.ended_at = now

    def intervals(self, now: float) -> list[tuple[RequestPhase, float, float]]:
        """Return contiguous (phase, start, end); the last one ends at `now` if the request has not ended."""
        ends = [start for start, _ in self._phase_starts[1:]] + [now if self.ended_at is None else self.ended_at]
        return [(phase, start, end) for (start, phase), end in zip(self._phase_starts, ends, strict=True)]

    def seconds_by_phase(self, now: float) -> dict[RequestPhase, float]:
        """Return the total seconds of each phase."""
        sums: dict[RequestPhase, float] = {}
        for phase, start, end in self.intervals(now):
            sums[phase] = sums.get(phase, 0.0) + end - start
        return sums
