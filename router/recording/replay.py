"""Replay of a recording: the scheduler gets the recorded calls and must make the recorded decisions. Prompts and
outputs are made of zeros, as a recording holds no tokens. `python -P -m router.recording.replay JSON`, an object with
the `file`, exits with 0 if every decision is the same, 1 if one differs, 2 if the file cannot be read."""

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from router.recording.recording_file import BadRecording, RecordedCall, Recording, SegmentStart, model_info_from_json
from router.recording.recording_scheduler import (
    DecisionSummary,
    summarize_events,
    summarize_plan,
    summarize_resource_commands,
)
from router.recording.scheduler_snapshot import (
    PLACEHOLDER_END_TOKEN,
    PLACEHOLDER_TOKEN,
    request_from_json,
    restore_scheduler,
    table_differences,
    table_to_json,
    take_snapshot,
)
from router.request import LoadableResource
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.shard_messages import StepPlan, StepResult, StepResultRow

CallResult = StepPlan | None | list[Any]  # a list of events or of resource commands
ONE_TOKEN_ROW = StepResultRow((PLACEHOLDER_TOKEN,), (0.0,))


class RowsDefaultingToOneToken(dict[int, StepResultRow]):
    """Rows of an answer: one token for every sequence without a row of its own."""

    def __missing__(self, sequence_id: int) -> StepResultRow:
        return ONE_TOKEN_ROW


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first call whose replayed outcome differs from the recorded one."""

    event_number: int  # of the event, from 1
    elapsed_seconds: float  # since the recording began
    method: str
    recorded_outcome: str
    replayed_outcome: str

    def __str__(self) -> str:
        return (f"event {self.event_number} ({self.method}), {self.elapsed_seconds:.3f} s after the beginning, differs"
                f"\n  recorded: {self.recorded_outcome}\n  now:      {self.replayed_outcome}")


@dataclass(slots=True)
class ReplayResult:
    """Numbers of a replay, the digest of its decisions, and the first difference, if there is one."""

    num_segments: int = 0
    num_events: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    digest: str = ""
    difference: ReplayDifference | None = None


class ReplayDiverged(Exception):
    """Replay in which the scheduler hashes more blocks than were recorded."""


class Replay:
    """One replay of a recording. A subclass may observe it by the `on_` methods, which do nothing here."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
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
            try:
                self._scheduler = restore_scheduler(segment.scheduler_table, self._next_block_hashes)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                raise BadRecording(f"{self._recording.path} was written by weft {self._recording.weft_version}, whose "
                                   f"core does not fit this one ({error!r})") from None
            self.observe_start(self._scheduler, segment.recorded_at)
            return None
        replayed_table = json.loads(table_to_json(take_snapshot(self._scheduler)))
        difference = next(table_differences(segment.scheduler_table, replayed_table), None)
        return None if difference is None else ("state", "the core as it stood when the next segment began", difference)

    def _next_block_hashes(self, parent_hash: bytes, tokens: GenericSequence[int], block_size: int) -> list[bytes]:
        """Return the next recorded hashes, in place of those of `tokens`, which are zeros."""
        count = len(tokens) // block_size
        if count > len(self._block_hashes):
            raise ReplayDiverged("the scheduler hashes more blocks than were recorded")
        block_hashes = [self._block_hashes.popleft() for _ in range(count)]
        self.observe_block_hashes(parent_hash, block_hashes)
        return block_hashes

    def _replay_call(self, call: RecordedCall) -> tuple[str, str, str] | None:
        if self._scheduler is None or (call.method not in ARGUMENT_DECODERS and call.method != "crash"):
            raise BadRecording(f"{self._recording.path}: event {self.result.num_events + 1} is {call.method}, out of "
                               "its place or unknown to this weft")
        self.result.num_events += 1
        self._block_hashes.extend(call.block_hashes)
        result: CallResult = None
        try:
            # A crash is repeated as the call that raised when it was recorded.
            method, *arguments = call.arguments if call.method == "crash" else (call.method, *call.arguments)
            result = getattr(self._scheduler, method)(*ARGUMENT_DECODERS[method](*arguments), call.recorded_at)
        except Exception as error:  # an exception is an outcome too, and is compared with the recorded one
            replayed_outcome: tuple[Any, ...] = (repr(error),)
        else:
            replayed_outcome = SUMMARIZERS.get(method, summarize_events)(result)
        self._digest.update(f"{call.method}{replayed_outcome}".encode())
        if replayed_outcome != call.outcome or self._block_hashes:
            unused_hashes = f", and {len(self._block_hashes)} blocks more" if self._block_hashes else ""
            return (call.method, describe_outcome(call.outcome) + unused_hashes, describe_outcome(replayed_outcome))
        self.observe_call(call, result, self._scheduler)
        return None

    def observe_start(self, scheduler: Scheduler, now: float) -> None:
        """Receive the scheduler in its state at the beginning of the recording."""

    def observe_call(self, call: RecordedCall, result: CallResult, scheduler: Scheduler) -> None:
        """Receive a call, its result, and the scheduler after the call."""

    def observe_block_hashes(self, parent_hash: bytes, hashes: GenericSequence[bytes]) -> None:
        """Receive the hashes of the blocks that follow the block with the hash `parent_hash`."""


def describe_outcome(outcome: tuple[Any, ...]) -> str:
    match outcome:
        case ():
            return "nothing"
        case (int(order), str(digest), decodes, new_sequences, tokens):
            return (f"message {order}, {decodes} sequences decode, {new_sequences} enter, {tokens} prompt tokens, "
                    f"digest {digest}")
        case _:
            return ", ".join(map(str, outcome))


def parse_complete_step_arguments(order: int, epoch: int, seconds: float, *unusual: Any) -> tuple[Any, ...]:
    lengths, ended, stopped, failed = unusual or ((), (), (), ())
    tokens = {sequence_id: [PLACEHOLDER_TOKEN] * length for sequence_id, length in lengths}
    for sequence_id, index in ended:
        tokens.setdefault(sequence_id, [PLACEHOLDER_TOKEN])[index] = PLACEHOLDER_END_TOKEN
    rows = RowsDefaultingToOneToken({sequence_id: StepResultRow(row, (0.0,) * len(row))
                                     for sequence_id, row in tokens.items()})
    return order, StepResult(epoch, seconds, rows, dict(failed)), dict(stopped)


# By method: the arguments of a call, without the time, from those recorded.
ARGUMENT_DECODERS: dict[str, Callable[..., tuple[Any, ...]]] = {
    **dict.fromkeys(("cancel", "suspend", "resume", "on_timer", "plan", "take_resource_commands"),
                    lambda *arguments: arguments),
    **dict.fromkeys(("on_resource_loaded", "on_resource_unloaded", "request_resource_load", "request_resource_unload"),
                    lambda *resource_fields: (LoadableResource(*resource_fields),)),
    "on_resource_failed": lambda *arguments: (LoadableResource(*arguments[:-1]), arguments[-1]),
    "submit": lambda request: (request_from_json(request),),
    "complete_step": parse_complete_step_arguments,
    "on_shards_lost": lambda loss_reason: (ShardLossReason[loss_reason],),
    "on_shards_ready": lambda model_info, epoch: (model_info_from_json(model_info), epoch),
}
SUMMARIZERS: dict[str, Callable[[Any], DecisionSummary]] = {
    "plan": summarize_plan, "take_resource_commands": summarize_resource_commands}  # of other methods: summarize_events


def format_report(recording: Recording, result: ReplayResult, seconds: float) -> str:
    lines = [f"{result.num_segments} segments, {result.num_events:,} events, "
             f"{result.ended_at - result.started_at:.1f} s, replayed in {seconds:.1f} s"]
    if recording.is_truncated:
        lines.append("the last line is incomplete and was left out")
    lines.append(f"every decision is the same, digest {result.digest}" if result.difference is None
                 else str(result.difference))
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
