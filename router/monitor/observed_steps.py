"""Steps and sequences as the live view shows them, and their JSON (docs/reference/engine.md)."""

from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from router.monitor.batch_lanes import LaneAndSequence
from router.request import LoadableResource, Request, RequestKind

# Kinds of rows: a chunk of a prompt, the chunk that ends it and yields a token, a decode, a whole text that is pooled.
CHUNK_ROW, FINAL_CHUNK_ROW, DECODE_ROW, POOLING_ROW = "p", "f", "d", "e"
# Kinds of steps. In the last two nothing is computed: sequences left the batch, or all did, as the shards were lost.
PREFILL_STEP, DECODE_STEP, MIXED_STEP, POOLING_STEP, IDLE_STEP, LOST_STEP = (
    "prefill", "decode", "mixed", "pooling", "idle", "lost")
FAILED = "failed"  # the finish reason of a sequence that a shard failed

Row = tuple[int, int, int, str]  # lane, sequence id, number of tokens, kind of row


@dataclass(slots=True)
class ObservedSequence:
    """Facts about a sequence that the live view shows, and that a replay of it needs. No token and no text."""

    id: int
    request_id: str
    tenant_name: str | None  # None: not known, since it was cancelled before it was observed
    kind: RequestKind
    adapter: LoadableResource | None
    adapter_name: str
    submitted_at: float
    num_prompt_tokens: int
    max_new_tokens: int
    priority: int = 0
    cache_namespace: bytes = b""
    block_hashes: GenericSequence[bytes] = ()
    num_cached_tokens: int = 0  # found in the prefix cache when it was first admitted
    num_output_tokens: int = 0
    first_step: int | None = None  # numbers of the first and the last step in which it was seen
    last_step: int = 0
    last_token_at: float | None = None

    @classmethod
    def from_request(cls, sequence_id: int, request: Request, submitted_at: float) -> "ObservedSequence":
        return cls(sequence_id, request.id, request.tenant.name, request.kind, request.adapter, request.adapter_name,
                   submitted_at, len(request.prompt), request.max_new_tokens, request.priority,
                   request.cache_namespace, request.block_hashes)

    @classmethod
    def unknown(cls, sequence_id: int, observed_at: float) -> "ObservedSequence":
        """Return a sequence of which only its rows are known."""
        return cls(sequence_id, "", None, RequestKind.GENERATE, None, "", observed_at, 0, 0)


@dataclass(slots=True)
class ObservedStep:
    """One answered step: its rows, and who entered and left the batch. Times are of the scheduler's clock."""

    number: int  # of steps since the start, this one included
    kind: str
    answered_at: float
    seconds: float = 0.0  # that the shards computed
    wall_seconds: float = 0.0  # since it was sent, or since the answer before if that came later
    epoch: int = 0
    message_number: int = 0
    rows: list[Row] = field(default_factory=list)
    admitted: list[LaneAndSequence] = field(default_factory=list)
    finished: list[tuple[int, int, str]] = field(default_factory=list)  # lane, sequence id, reason
    preempted: list[LaneAndSequence] = field(default_factory=list)
    cancelled: list[LaneAndSequence] = field(default_factory=list)
    num_running: int = 0
    num_waiting: int = 0
    num_blocks_used: int = 0

    def to_json(self, clock_offset: float) -> dict[str, Any]:
        """Return the step as JSON; `clock_offset` turns times into those of the reader."""
        return {
            "step": self.number, "t": round_seconds(self.answered_at + clock_offset), "kind": self.kind,
            "ms": to_milliseconds(self.seconds), "wall_ms": to_milliseconds(self.wall_seconds), "epoch": self.epoch,
            "message": self.message_number, "rows": self.rows, "admitted": self.admitted, "finished": self.finished,
            "preempted": self.preempted, "cancelled": self.cancelled, "running": self.num_running,
            "waiting": self.num_waiting, "blocks_used": self.num_blocks_used}


class StepJsonEncoder:
    """Encoder of steps as JSON text. Rows that are those of the step before, the same list, are encoded once."""

    def __init__(self, clock_offset: float) -> None:
        self._clock_offset = clock_offset
        self._last_rows: list[Row] = []
        self._last_rows_text = "[]"

    def encode(self, step: ObservedStep) -> str:
        if step.rows is not self._last_rows:
            self._last_rows, self._last_rows_text = step.rows, to_json(step.rows).decode()
        members = step.to_json(self._clock_offset)
        del members["rows"]
        return f'{to_json(members).decode()[:-1]},"rows":{self._last_rows_text}}}'


def round_seconds(seconds: float) -> float:
    return round(seconds, 4)


def to_milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
