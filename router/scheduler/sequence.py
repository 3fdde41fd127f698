"""State of one request being served: tokens so far, blocks held, tokens sent to the shards; and its timeline.

The rules by which this state changes are mainly in `running_sequences.py`, `step.py` and `sequence_table.py`.
"""

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from math import inf

from router.request import LoadableResource, Request

SECONDS_PER_PRIORITY_LEVEL = 10.0


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
    ADAPTER = "adapter"  # not loaded yet; equal to the kind of the resource, as the next one
    GRAMMAR = "grammar"  # not compiled yet
    FAULT_ISOLATION = "trial"  # steps failed: suspects run first
    SLOW_CLIENT = "reader"  # its client does not read the stream
    PREEMPTED = "yielded"  # its blocks went to others; it runs again later
    NO_SHARDS = "shards"  # no shards are ready
    PREFILL = "prefill"
    DECODE = "decode"


RUNNING_PHASES = frozenset({RequestPhase.PREFILL, RequestPhase.DECODE})
MAX_INTERVALS = 512  # intervals; beyond, a change between two waiting phases is not recorded


class RequestTimeline:
    """Timeline that begins when the request is submitted; `end` closes the last interval."""

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
        return RequestPhase.PREFILL in [phase for _, phase in self._phase_starts]

    @property
    def num_preemptions(self) -> int:
        return [phase for _, phase in self._phase_starts].count(RequestPhase.PREEMPTED)

    def first_start(self, phase: RequestPhase) -> float | None:
        """Return when the request first entered the phase; None if it never did."""
        return next((start for start, entered in self._phase_starts if entered is phase), None)

    def enter_phase(self, phase: RequestPhase, now: float) -> None:
        """Begin an interval in this phase, unless it is the current one or the timeline has ended."""
        current_phase = self._phase_starts[-1][1]
        if (phase is not current_phase and self.ended_at is None
            and (len(self._phase_starts) < MAX_INTERVALS or RUNNING_PHASES & {phase, current_phase})):
            self._phase_starts.append((now, phase))

    def end(self, now: float) -> None:
        if self.ended_at is None:
            self.ended_at = now

    def copy(self) -> "RequestTimeline":
        """Return a timeline of its own, which another thread may read."""
        copied = RequestTimeline(*self._phase_starts[0])
        copied._phase_starts[:] = self._phase_starts
        copied.num_prefix_hit_tokens, copied.ended_at = self.num_prefix_hit_tokens, self.ended_at
        return copied

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


class SequenceState(Enum):
    """State of a sequence in the scheduler."""

    WAITING = auto()  # in the queue, holds no blocks
    RUNNING = auto()  # in a batch
    # Left its batch (preempted, suspended, or to be recomputed); returns to the queue once its tokens in flight are
    # answered, or to the batch at once if it is recomputed.
    PREEMPTED = auto()
    FINISHING = auto()  # left its batch, or was in none (pooling): the steps in flight are its last
    FINISHED = auto()  # no longer in the table: its terminal event was returned, or it was cancelled


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request being served: its tokens so far, the blocks it holds, and how much of it was sent."""

    request: Request
    id: int
    submitted_at: float
    generated: list[int] = field(default_factory=list)
    state: SequenceState = SequenceState.WAITING
    blocks: list[int] = field(default_factory=list)
    length: int = field(init=False)  # prompt and generated tokens; stored because every step reads it
    num_tokens_to_prefill: int = 0  # its length when it last entered a batch; it can decode when all are scheduled
    num_scheduled_tokens: int = 0  # found in the prefix cache at its entry, or sent to be computed, answered or not
    num_outputs_in_flight: int = 0  # unanswered steps that will produce tokens for it
    num_cached_blocks: int = 0  # its leading blocks that are in the prefix cache
    block_hashes: list[bytes] = field(init=False)  # of all blocks hashed so far
    # Blocks found in the prefix cache while it waits, at this version of the cache's contents; None: not looked up.
    cached_prefix: list[int] = field(default_factory=list)
    cached_prefix_version: int | None = None
    num_charged_tokens: int = 0  # leading given tokens that its tenant is not charged for again
    num_preemptions: int = 0
    num_shard_deaths: int = 0
    is_suspended: bool = False  # its client does not read; it may not run
    predicted_raw_wait: float | None = None  # seconds, at its arrival, without bias correction; None once started
    missing_resource: LoadableResource | None = None  # while it waits: the first resource it needs that is not loaded
    deadline: float = field(init=False)
    timeline: RequestTimeline = field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.request.prompt) + len(self.generated)
        self.block_hashes = list(self.request.block_hashes)
        self.timeline = RequestTimeline(self.submitted_at)
        timeout = self.request.timeout
        self.deadline = inf if timeout is None else self.submitted_at + timeout

    @property
    def is_ready_to_decode(self) -> bool:
        """Whether its prompt is complete: all tokens that it entered with are sent."""
        return self.num_scheduled_tokens >= self.num_tokens_to_prefill

    @property
    def waiting_phase(self) -> RequestPhase:
        """Phase of the sequence if it waits: for its client, for a resource, or else for its turn."""
        if self.is_suspended:
            return RequestPhase.SLOW_CLIENT
        return RequestPhase.QUEUE if self.missing_resource is None else RequestPhase(self.missing_resource.kind)

    @property
    def priority_key(self) -> tuple[float, int]:
        """Sort key, lowest first: one level of priority equals SECONDS_PER_PRIORITY_LEVEL seconds of age."""
        return (self.submitted_at - SECONDS_PER_PRIORITY_LEVEL * self.request.priority, self.id)

    def reset_cache_state(self) -> list[int]:
        """Reset the fields about the cache; return the blocks that the sequence held."""
        blocks, self.blocks = self.blocks, []
        self.num_tokens_to_prefill = self.num_scheduled_tokens = self.num_cached_blocks = 0
        self.cached_prefix_version = None
        return blocks
