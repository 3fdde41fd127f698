"""Replay of a recording: the scheduler gets the recorded calls and must make the recorded decisions.

`python -P -m router.recording.replay JSON`, an object with the `file`. A recording holds no tokens; prompts and
outputs are made of the same number of zeros, on which no decision may depend. Exit status: 0 if every decision is the
same, 1 if one differs, 2 if the recording cannot be read.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from router.recording import decision_summary
from router.recording.file import BadRecording, RecordedCall, Recording, SegmentStart, model_info_from_json
from router.recording.redact import PLACEHOLDER_END_TOKEN, PLACEHOLDER_TOKEN, request_from_json
from router.recording.state import restore_scheduler, table_differences, table_to_json, take_snapshot
from router.request import LoadableResource
from router.scheduler.events import SchedulerEvent
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.messages import ResourceCommand, StepPlan, StepResult, StepResultRow
from router.scheduler.scheduler import Scheduler

CallResult = StepPlan | None | list[SchedulerEvent] | tuple[ResourceCommand, ...]
ONE_TOKEN_ROW = StepResultRow((PLACEHOLDER_TOKEN,), (0.0,))


class OneTokenRows(dict[int, StepResultRow]):
    """Rows of an answer: one token for every sequence without a row of its own."""

    def __missing__(self, sequence_id: int) -> StepResultRow:
        return ONE_TOKEN_ROW


class ReplayObserver:
    """Observer of a replay. The methods of this base class do nothing."""

    def on_start(self, scheduler: Scheduler, now: float) -> None:
        """Receive the scheduler in its state at the beginning of the recording."""

    def on_call(self, call: RecordedCall, result: CallResult, scheduler: Scheduler) -> None:
        """Receive a call, its result, and the scheduler after the call."""

    def on_block_hashes(self, parent_hash: bytes, hashes: GenericSequence[bytes]) -> None:
        """Receive the hashes of the blocks that follow the block with the hash `parent_hash`."""


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first call whose replayed outcome differs from the recorded one."""

    event_number: int  # of the event, from 1
    elapsed_seconds: float  # since the recording began
    method: str
    recorded_outcome: str
    replayed_outcome: str

    def __str__(self) -> str:
        return (
            f"event {self.event_number} ({self.method}), {self.elapsed_seconds:.3f} s after the beginning, differs\n"
            f"  recorded: {self.recorded_outcome}\n  now:      {self.replayed_outcome}")


@dataclass(slots=True)
class ReplayResult:
    """Numbers of a replay, the digest of its decisions, and the first difference, if there is one."""

    num_segments: int = 0
    num_events: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    digest: str = ""
    difference: ReplayDifference | None = None


class UnrecordedBlockHashes(Exception):
    """The scheduler hashes more blocks than were recorded."""


class Replay:
    """One replay of a recording, of which a `ReplayObserver` may observe every call."""

    def __init__(self, recording: Recording, observer: ReplayObserver | None = None) -> None:
        self._recording = recording
        self._observer = observer or ReplayObserver()
        self._block_hashes: deque[bytes] = deque()
        self._digest = blake2b(digest_size=8)
        self._scheduler: Scheduler | None = None
        self.result = ReplayResult()

    def run(self) -> ReplayResult:
        """Replay to the end or to the first difference."""
        result = self.result
        for item in self._recording:
            difference = self._replay_segment_start(item) if isinstance(item, SegmentStart) else self._replay_call(item)
            result.ended_at = item.recorded_at
            if difference is not None:
                result.difference = ReplayDifference(result.num_events, item.recorded_at - result.started_at,
                                                     *difference)
                break
        if self._scheduler is None:
            raise BadRecording(f"{self._recording.path} holds no segment")
        result.digest = self._digest.hexdigest()
        return result

    def _replay_segment_start(self, segment: SegmentStart) -> tuple[str, str, str] | None:
        self.result.num_segments += 1
        if self._scheduler is None:
            self.result.started_at = segment.recorded_at
            self._scheduler = self._restore_scheduler(segment)
            self._observer.on_start(self._scheduler, segment.recorded_at)
            return None
        replayed_table = json.loads(table_to_json(take_snapshot(self._scheduler)))
        difference = next(table_differences(segment.scheduler_table, replayed_table), None)
        return None if difference is None else ("state", "the core as it stood when the next segment began", difference)

    def _restore_scheduler(self, segment: SegmentStart) -> Scheduler:
        try:
            return restore_scheduler(segment.scheduler_table, self._next_block_hashes)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise BadRecording(
                f"{self._recording.path} was written by weft {self._recording.weft_version}, whose core does "
                f"not fit this one ({error!r})") from None

    def _next_block_hashes(self, parent_hash: bytes, tokens: GenericSequence[int], block_size: int) -> list[bytes]:
        """Return the next recorded hashes, in place of those of `tokens`, which are zeros."""
        count = len(tokens) // block_size
        if count > len(self._block_hashes):
            raise UnrecordedBlockHashes("it names more blocks than were named")
        block_hashes = [self._block_hashes.popleft() for _ in range(count)]
        self._observer.on_block_hashes(parent_hash, block_hashes)
        return block_hashes

    def _replay_call(self, call: RecordedCall) -> tuple[str, str, str] | None:
        if self._scheduler is None or call.method not in CALL_REPLAYERS:
            raise BadRecording(f"{self._recording.path}: event {self.result.num_events + 1} is {call.method}, out of "
                               "its place or unknown to this weft")
        self.result.num_events += 1
        self._block_hashes.extend(call.block_hashes)
        try:
            result = CALL_REPLAYERS[call.method](self._scheduler, call)
        except Exception as error:  # an exception is an outcome too, and is compared with the recorded one
            replayed_outcome: tuple[Any, ...] = (repr(error),)
            result = None
        else:
            replayed_outcome = summarize_result(result)
        self._digest.update(f"{call.method}{replayed_outcome}".encode())
        if replayed_outcome != call.outcome or self._block_hashes:
            unused_hashes = f", and {len(self._block_hashes)} blocks more" if self._block_hashes else ""
            return (call.method, describe_outcome(call.outcome) + unused_hashes, describe_outcome(replayed_outcome))
        self._observer.on_call(call, result, self._scheduler)
        return None


def summarize_result(result: CallResult) -> tuple[Any, ...]:
    if isinstance(result, StepPlan):
        return decision_summary.summarize_plan(result)
    if isinstance(result, tuple):
        return decision_summary.summarize_resource_commands(result)
    return decision_summary.summarize_events(result) if result else ()


def describe_outcome(outcome: tuple[Any, ...]) -> str:
    match outcome:
        case ():
            return "nothing"
        case (int(order), str(digest), decodes, new_sequences, tokens):
            return (
                f"message {order}, {decodes} sequences decode, {new_sequences} enter, {tokens} prompt tokens, digest "
                f"{digest}")
        case _:
            return ", ".join(map(str, outcome))


def replay_complete_call(scheduler: Scheduler, call: RecordedCall) -> list[SchedulerEvent]:
    order, epoch, seconds, *unusual = call.arguments
    lengths, ended, stopped, failed = unusual or ((), (), (), ())
    tokens = {sequence_id: [PLACEHOLDER_TOKEN] * length for sequence_id, length in lengths}
    for sequence_id, index in ended:
        tokens.setdefault(sequence_id, [PLACEHOLDER_TOKEN])[index] = PLACEHOLDER_END_TOKEN
    rows = OneTokenRows({sequence_id: StepResultRow(row, (0.0,) * len(row)) for sequence_id, row in tokens.items()})
    return scheduler.complete_step(order, StepResult(epoch, seconds, rows, dict(failed)), dict(stopped),
                                   call.recorded_at)


def replay_crashed_call(scheduler: Scheduler, call: RecordedCall) -> CallResult:
    """Repeat the call that raised when it was recorded."""
    method, *arguments = call.arguments
    return CALL_REPLAYERS[method](scheduler, RecordedCall(method, call.recorded_at, tuple(arguments)))


CALL_REPLAYERS: Mapping[str, Callable[[Scheduler, RecordedCall], CallResult]] = {
    "submit": lambda core, call: core.submit(request_from_json(call.arguments[0]), call.recorded_at),
    "cancel": lambda core, call: core.cancel(call.arguments[0], call.recorded_at),
    "suspend": lambda core, call: core.suspend(call.arguments[0], call.recorded_at),
    "resume": lambda core, call: core.resume(call.arguments[0], call.recorded_at),
    "on_resource_loaded": lambda core, call: core.on_resource_loaded(LoadableResource(*call.arguments),
                                                                     call.recorded_at),
    "on_resource_failed": lambda core, call: core.on_resource_failed(LoadableResource(*call.arguments[:-1]),
                                                                     call.arguments[-1], call.recorded_at),
    "on_resource_unloaded": lambda core, call: core.on_resource_unloaded(LoadableResource(*call.arguments),
                                                                         call.recorded_at),
    "request_load": lambda core, call: core.request_load(LoadableResource(*call.arguments), call.recorded_at),
    "request_unload": lambda core, call: core.request_unload(LoadableResource(*call.arguments), call.recorded_at),
    "take_resource_commands": lambda core, call: tuple(core.take_resource_commands(call.recorded_at)),
    "plan": lambda core, call: core.plan(call.recorded_at), "complete_step": replay_complete_call,
    "on_timer": lambda core, call: core.on_timer(call.recorded_at),
    "on_shards_lost": lambda core, call: core.on_shards_lost(ShardLossReason[call.arguments[0]], call.recorded_at),
    "on_shards_ready": lambda core, call: core.on_shards_ready(model_info_from_json(call.arguments[0]),
                                                               call.arguments[1],
                                                               call.recorded_at), "crash": replay_crashed_call,}


def format_report(recording: Recording, result: ReplayResult, seconds: float) -> str:
    lines = [f"{result.num_segments} segments, {result.num_events:,} events, "
             f"{result.ended_at - result.started_at:.1f} s, replayed in {seconds:.1f} s"]
    if recording.is_truncated:
        lines.append("the last line is incomplete and was left out")
    if result.difference is None:
        lines.append(f"every decision is the same, digest {result.digest}")
    else:
        lines.append(str(result.difference))
    return "\n".join(lines)


def main() -> None:
    try:
        recording = Recording(Path(json.loads(sys.argv[1])["file"]))
        started = time.monotonic()
        result = Replay(recording).run()
    except BadRecording as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(2) from None
    sys.stdout.write(format_report(recording, result, time.monotonic() - started) + "\n")
    raise SystemExit(result.difference is not None)


if __name__ == "__main__":
    main()
