"""Scheduler that keeps its calls of the last minutes in memory: what scheduling depends on, no token and no text. They
are kept in segments that begin with a snapshot of the scheduler, so that the oldest one kept can be replayed."""

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass
from hashlib import blake2b
from marshal import dumps
from typing import Any

from router.model_info import ModelInfo
from router.recording.scheduler_snapshot import StateTable, get_resource_fields, redact_request, take_snapshot
from router.request import FinishReason, hash_blocks
from router.scheduler.events import SchedulerEvent, SequenceFinished, TokensGenerated
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import (
    Decode,
    Filter,
    PoolingStep,
    Prefill,
    ResourceCommand,
    ShardMessage,
    StepPlan,
    StepResult,
)

MARSHAL_VERSION = 2  # version of marshal's format: the last one in which equal values always give equal bytes
SEGMENT_SECONDS, SEGMENT_FRACTION = 30.0, 0.1  # a segment lasts so many seconds or this share of all kept, if longer
MAX_SEGMENT_CALLS = 20_000  # in a segment, which ends earlier if need be
MAX_SEGMENTS = 16  # kept, however short they are

DecisionSummary = tuple[Any, ...]
# A recorded call: method, time, arguments, outcome, and the block hashes computed during the call. A time alone is a
# call of `plan` that returned None.
CallEntry = tuple[str, float, tuple[Any, ...], DecisionSummary, tuple[bytes, ...]] | float


@dataclass(frozen=True, slots=True)
class SnapshotWithCalls:
    """A snapshot of the scheduler and the calls recorded since."""

    snapshot: StateTable
    started_at: float
    entries: GenericSequence[CallEntry]


class RecordingScheduler(Scheduler):
    """Scheduler that records the arguments and outcome of every call that can change its state."""

    __slots__ = ("_entries", "_kept_seconds", "_next_segment_at", "_pending_hashes", "_segments")

    def __init__(self, settings: SchedulerSettings, model_info: ModelInfo, kept_seconds: float, now: float) -> None:
        """Keep at least the last `kept_seconds`, or fewer if there are too many events."""
        self._kept_seconds = kept_seconds
        self._segments: deque[SnapshotWithCalls] = deque(maxlen=MAX_SEGMENTS)
        self._pending_hashes: list[bytes] = []  # block hashes computed during the current call
        super().__init__(settings, model_info, self._hash_blocks)
        self._start_segment(now)

    def _start_segment(self, now: float) -> None:
        snapshot = take_snapshot(self)
        self._entries: list[CallEntry] = []  # of the last segment
        self._segments.append(SnapshotWithCalls(snapshot, now, self._entries))
        self._next_segment_at = now + max(SEGMENT_SECONDS, SEGMENT_FRACTION * self._kept_seconds)
        while len(self._segments) > 1 and self._segments[1].started_at < now - self._kept_seconds:
            self._segments.popleft()

    def copy_segments(self) -> list[SnapshotWithCalls]:
        """Return immutable copies of the segments kept so far."""
        return [SnapshotWithCalls(segment.snapshot, segment.started_at, tuple(segment.entries))
                for segment in self._segments]

    def _hash_blocks(self, parent_hash: bytes, tokens: GenericSequence[int], block_size: int) -> tuple[bytes, ...]:
        hashes = hash_blocks(parent_hash, tokens, block_size)
        self._pending_hashes += hashes
        return hashes

    def _add_call(self, method: str, now: float, arguments: tuple[Any, ...], outcome: DecisionSummary) -> None:
        self._entries.append((method, now, arguments, outcome, tuple(self._pending_hashes)))
        self._pending_hashes.clear()

    def take_resource_commands(self, now: float) -> list[ResourceCommand]:
        commands = super().take_resource_commands(now)
        if commands:
            self._add_call("take_resource_commands", now, (), summarize_resource_commands(commands))
        return commands

    def plan(self, now: float) -> StepPlan | None:
        if now >= self._next_segment_at or len(self._entries) >= MAX_SEGMENT_CALLS:
            self._start_segment(now)
        try:
            plan = super().plan(now)
        except Exception as error:
            self._add_call("crash", now, ("plan",), (repr(error),))
            raise
        if plan is None and not self._pending_hashes:
            self._entries.append(now)
        else:
            self._add_call("plan", now, (), summarize_plan(plan))
        return plan

    def complete_step(self, last_message_number: int, result: StepResult, stop_token_counts: Mapping[int, int],
                      now: float) -> list[SchedulerEvent]:
        arguments: tuple[Any, ...] = (last_message_number, result.epoch, result.seconds)
        try:
            events = super().complete_step(last_message_number, result, stop_token_counts, now)
        except Exception as error:
            self._add_call("crash", now, ("complete_step", *arguments), (repr(error),))
            raise
        outcome = summarize_events(events)
        if outcome or stop_token_counts or self._model_info.tokens_per_step > 1 or result.failures:
            arguments += summarize_unusual_result(result, stop_token_counts, events)
        self._add_call("complete_step", now, arguments, outcome)
        return events


# How the arguments of the other calls are recorded, without the time.
RECORDED_CALLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    **dict.fromkeys(("cancel", "suspend", "resume", "on_timer", "on_shards_ready"), lambda *arguments: arguments),
    **dict.fromkeys(("on_resource_loaded", "on_resource_failed", "on_resource_unloaded", "request_resource_load",
                     "request_resource_unload"), lambda resource, *others: (*get_resource_fields(resource), *others)),
    "submit": lambda request: (redact_request(request),),
    "on_shards_lost": lambda loss_reason: (loss_reason.name,),
}


def make_recording_method(name: str, describe_arguments: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Return the method of RecordingScheduler that makes a call and records it. The last argument is the time."""
    make_call = getattr(Scheduler, name)

    def call(self: RecordingScheduler, *arguments: Any) -> list[SchedulerEvent]:
        events: list[SchedulerEvent] = make_call(self, *arguments)
        *others, now = arguments
        self._add_call(name, now, describe_arguments(*others), summarize_events(events))
        return events

    return call


for _name, _describe_arguments in RECORDED_CALLS.items():
    setattr(RecordingScheduler, _name, make_recording_method(_name, _describe_arguments))


def make_optionally_recorded_scheduler(settings: SchedulerSettings, model_info: ModelInfo, kept_seconds: float,
                                       now: float) -> Scheduler:
    """Return a scheduler that records at least the last `kept_seconds`, or does not record if that is 0."""
    return (RecordingScheduler(settings, model_info, kept_seconds, now) if kept_seconds
            else Scheduler(settings, model_info))


def summarize_unusual_result(result: StepResult, stop_token_counts: Mapping[int, int],
                             events: list[SchedulerEvent]) -> tuple[Any, ...]:
    """Return how an answer differs from the usual one, a token for each sequence, none of which ends. The parts
    are: lengths of rows other than 1, the index of the end token if one came, tokens up to a stop string, failures."""
    counts = next((event.token_counts for event in events if isinstance(event, TokensGenerated)), {})
    ended = [(event.sequence_id, counts[event.sequence_id] - 1) for event in events
             if isinstance(event, SequenceFinished) and event.reason is FinishReason.END_TOKEN]
    lengths = [(sequence_id, len(row.tokens)) for sequence_id, row in result.rows.items() if len(row.tokens) != 1]
    return (tuple(lengths), tuple(ended), tuple(stop_token_counts.items()), tuple(result.failures.items()))


# -- summaries of decisions


def summarize_plan(plan: StepPlan | None) -> DecisionSummary:
    """Return a plan's last message number, its digest, and three figures: decoding and new sequences, prompt tokens.
    The digest covers all decisions: numbers, members, which of them yield tokens, and the messages by sequence ids,
    blocks and lengths. It leaves out the epoch, the tokens and the predicted seconds, which are no decisions."""
    if plan is None:
        return ()
    has_unfinished_prompts = len(plan.member_ids) > len(plan.output_ids)  # members that yield no token
    digest_input = dumps((plan.last_message_number, plan.member_ids, plan.output_ids if has_unfinished_prompts else (),
                          [*map(_message_digest_fields, plan.messages)]), MARSHAL_VERSION)
    digest = blake2b(digest_input, digest_size=8).hexdigest()
    step = plan.messages[-1]
    if isinstance(step, Prefill):
        return (plan.last_message_number, digest, len(plan.member_ids) - len(step.chunks), len(step.new_sequences),
                sum(chunk.length for chunk in step.chunks))
    if isinstance(step, PoolingStep):
        return (plan.last_message_number, digest, 0, len(step.new_sequences),
                sum(len(new_sequence.request.prompt) for new_sequence in step.new_sequences))
    return (plan.last_message_number, digest, len(plan.member_ids), 0, 0)


def _message_digest_fields(message: ShardMessage) -> tuple[Any, ...]:
    if isinstance(message, Decode):
        return (0, message.batch, [(grant.sequence_id, grant.blocks) for grant in message.grants], message.keep)
    if isinstance(message, Prefill):
        new_sequences = [(n.sequence_id, len(n.generated), n.blocks, n.num_cached_tokens)
                         for n in message.new_sequences]
        chunks = [(c.sequence_id, c.start, c.length) for c in message.chunks]
        return (1, message.batch, new_sequences, chunks, message.includes_decodes,
                [(grant.sequence_id, grant.blocks) for grant in message.grants], message.keep)
    if isinstance(message, Filter):
        return (2, message.batch, message.keep)
    if isinstance(message, PoolingStep):
        return (4, str(message.kind), [new_sequence.sequence_id for new_sequence in message.new_sequences])
    return (3, message.batches)


def summarize_resource_commands(commands: GenericSequence[ResourceCommand]) -> DecisionSummary:
    return tuple((type(command).__name__, command.resource.kind, command.resource.id) for command in commands)


def summarize_events(events: list[SchedulerEvent]) -> DecisionSummary:
    """Return all events but `TokensGenerated`, whose counts follow from the answer, an input."""
    if len(events) == 1 and type(events[0]) is TokensGenerated:
        return ()
    return tuple((type(event).__name__, *(getattr(event, name) for name in event.__slots__))
                 for event in events if type(event) is not TokensGenerated)
