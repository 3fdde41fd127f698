"""Scheduler that records its calls and its decisions of the last minutes, in memory.

It records what scheduling depends on: times, lengths, block hashes, which sequences ended; no token and no text.
Segments of half a minute or more (less if they reach MAX_SEGMENT_CALLS) follow each other, each with a snapshot of the
whole scheduler at its beginning, so that a recording can be replayed from the oldest segment that is kept.
"""

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass
from typing import Any

from router.model_info import ModelInfo
from router.recording import decision_summary
from router.recording.decision_summary import DecisionSummary
from router.recording.redact import get_resource_fields, redact_request
from router.recording.state import StateTable, take_snapshot
from router.request import FinishReason, hash_blocks
from router.scheduler.events import SchedulerEvent, SequenceFinished, TokensGenerated
from router.scheduler.messages import ResourceCommand, StepPlan, StepResult
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings

SEGMENT_SECONDS, SEGMENT_FRACTION = 30.0, 0.1  # a segment lasts so many seconds or this share of all kept, if longer
MAX_SEGMENT_CALLS = 20_000  # in a segment, which ends earlier if need be
MAX_SEGMENTS = 16  # kept, however short they are

# A recorded call: method, time, arguments, outcome, and the block hashes computed during the call. A time alone is a
# call of `plan` that returned None.
CallEntry = tuple[str, float, tuple[Any, ...], DecisionSummary, tuple[bytes, ...]] | float


@dataclass(frozen=True, slots=True)
class RecordingSegment:
    """A snapshot of the scheduler and the calls recorded since."""

    snapshot: StateTable
    started_at: float
    entries: GenericSequence[CallEntry]


class RecordingBuffer:
    """Ring of segments. The first `start_segment` begins the first one."""

    def __init__(self, kept_seconds: float) -> None:
        self.kept_seconds = kept_seconds
        self.segments: deque[RecordingSegment] = deque(maxlen=MAX_SEGMENTS)
        self.entries: list[CallEntry] = []  # of the last segment
        self.pending_hashes: list[bytes] = []  # block hashes computed during the current call
        self.next_segment_at = 0.0  # when the next segment begins

    def start_segment(self, snapshot: StateTable, now: float) -> None:
        self.entries = []
        self.segments.append(RecordingSegment(snapshot, now, self.entries))
        self.next_segment_at = now + max(SEGMENT_SECONDS, SEGMENT_FRACTION * self.kept_seconds)
        while len(self.segments) > 1 and self.segments[1].started_at < now - self.kept_seconds:
            self.segments.popleft()

    def add_call(self, method: str, now: float, arguments: tuple[Any, ...], outcome: DecisionSummary) -> None:
        hashes = tuple(self.pending_hashes) if self.pending_hashes else ()
        self.pending_hashes.clear()
        self.entries.append((method, now, arguments, outcome, hashes))

    def copy_segments(self) -> list[RecordingSegment]:
        """Return immutable copies of the segments kept so far."""
        return [RecordingSegment(segment.snapshot, segment.started_at, tuple(segment.entries))
                for segment in self.segments]


class RecordingScheduler(Scheduler):
    """Scheduler that records the arguments and outcome of every call that can change its state."""

    __slots__ = ("_buffer",)

    def __init__(self, settings: SchedulerSettings, model_info: ModelInfo, kept_seconds: float, now: float) -> None:
        """Keep at least the last `kept_seconds`, or fewer if there are too many events."""
        self._buffer = RecordingBuffer(kept_seconds)
        super().__init__(settings, model_info, self._hash_blocks)
        self._buffer.start_segment(take_snapshot(self), now)

    def copy_segments(self) -> list[RecordingSegment]:
        return self._buffer.copy_segments()

    def _hash_blocks(self, parent_hash: bytes, tokens: GenericSequence[int], block_size: int) -> tuple[bytes, ...]:
        hashes = hash_blocks(parent_hash, tokens, block_size)
        self._buffer.pending_hashes += hashes
        return hashes

    def take_resource_commands(self, now: float) -> list[ResourceCommand]:
        commands = super().take_resource_commands(now)
        if commands:
            self._buffer.add_call("take_resource_commands", now, (),
                                  decision_summary.summarize_resource_commands(commands))
        return commands

    def plan(self, now: float) -> StepPlan | None:
        buffer = self._buffer
        if now >= buffer.next_segment_at or len(buffer.entries) >= MAX_SEGMENT_CALLS:
            buffer.start_segment(take_snapshot(self), now)
        try:
            plan = super().plan(now)
        except Exception as error:
            buffer.add_call("crash", now, ("plan",), (repr(error),))
            raise
        if plan is None and not buffer.pending_hashes:
            buffer.entries.append(now)
        else:
            buffer.add_call("plan", now, (), decision_summary.summarize_plan(plan) if plan is not None else ())
        return plan

    def complete_step(self, last_message_number: int, result: StepResult, stop_token_counts: Mapping[int, int],
                      now: float) -> list[SchedulerEvent]:
        arguments: tuple[Any, ...] = (last_message_number, result.epoch, result.seconds)
        try:
            events = super().complete_step(last_message_number, result, stop_token_counts, now)
        except Exception as error:
            self._buffer.add_call("crash", now, ("complete_step", *arguments), (repr(error),))
            raise
        outcome = decision_summary.summarize_events(events)
        if outcome or stop_token_counts or self._model_info.tokens_per_step > 1 or result.failures:
            arguments += summarize_unusual_result(result, stop_token_counts, events)
        self._buffer.add_call("complete_step", now, arguments, outcome)
        return events


# How the arguments of the other calls are recorded, without the time.
RECORDED_CALLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "submit": lambda request: (redact_request(request),),
    "cancel": lambda sequence_id: (sequence_id,),
    "suspend": lambda sequence_id: (sequence_id,),
    "resume": lambda sequence_id: (sequence_id,),
    "on_timer": lambda: (),
    "on_resource_loaded": get_resource_fields,
    "on_resource_failed": lambda resource, reason: (*get_resource_fields(resource), reason),
    "on_resource_unloaded": get_resource_fields,
    "request_load": get_resource_fields,
    "request_unload": get_resource_fields,
    "on_shards_lost": lambda loss_reason: (loss_reason.name,),
    "on_shards_ready": lambda model_info, epoch: (model_info, epoch),
}


def make_recorded_call(name: str, describe_arguments: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Return the method of RecordingScheduler that makes a call and records it. The last argument is the time."""
    make_call = getattr(Scheduler, name)

    def call(self: RecordingScheduler, *arguments: Any) -> list[SchedulerEvent]:
        events: list[SchedulerEvent] = make_call(self, *arguments)
        *others, now = arguments
        self._buffer.add_call(name, now, describe_arguments(*others), decision_summary.summarize_events(events))
        return events

    return call


for _name, _describe_arguments in RECORDED_CALLS.items():
    setattr(RecordingScheduler, _name, make_recorded_call(_name, _describe_arguments))


def make_scheduler(settings: SchedulerSettings, model_info: ModelInfo, kept_seconds: float, now: float) -> Scheduler:
    """Return a scheduler that records at least the last `kept_seconds`, or does not record if that is 0."""
    return (RecordingScheduler(settings, model_info, kept_seconds, now) if kept_seconds
            else Scheduler(settings, model_info))


def summarize_unusual_result(result: StepResult, stop_token_counts: Mapping[int, int],
                             events: list[SchedulerEvent]) -> tuple[Any, ...]:
    """Return how an answer differs from the usual one, a token for each sequence, none of which ends.

    The parts are: lengths of rows that do not have one token, the index of the end token of each sequence that one
    ended, tokens up to a stop string, and failures.
    """
    counts = next((event.token_counts for event in events if isinstance(event, TokensGenerated)), {})
    ended = [(event.sequence_id, counts[event.sequence_id] - 1) for event in events
             if isinstance(event, SequenceFinished) and event.reason is FinishReason.END_TOKEN]
    lengths = [(sequence_id, len(row.tokens)) for sequence_id, row in result.rows.items()
               if len(row.tokens) != 1]
    return (tuple(lengths), tuple(ended), tuple(stop_token_counts.items()), tuple(result.failures.items()))
