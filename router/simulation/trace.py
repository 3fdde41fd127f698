"""Trace of requests, their arrival times and output lengths: from a recording, or from a plain list in JSON lines, each
an object with `at` (seconds), `prompt_tokens`, `output_tokens`, and possibly `max_new_tokens`, `priority`, `tenant`,
`timeout`, `leaves_after` (seconds), `adapter`, and `prefix` with the `prefix_tokens` that its requests share."""

import json
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

from router.recording.recording_file import BadRecording, RecordedCall, Recording
from router.recording.replay import CallResult, Replay
from router.recording.scheduler_snapshot import PLACEHOLDER_END_TOKENS, PLACEHOLDER_TOKEN, request_from_json
from router.request import ADAPTER, LoadableResource, Request, Tenant, hash_blocks
from router.scheduler.events import SequenceFailed, SequenceFinished
from router.scheduler.scheduler import Scheduler
from router.scheduler.shard_messages import StepPlan
from router.simulation.run_stats import RunStats
from router.simulation.timing_profile import TimingCollector, TimingProfile

USUAL_BLOCK_SIZE = 16


@dataclass(slots=True)
class RequestArrival:
    """A request of a trace: when it arrives and how many tokens it generates."""

    arrived_at: float  # seconds since the beginning
    request: Request
    num_output_tokens: int
    cancelled_after_seconds: float | None = None  # seconds
    is_arrival_known: bool = True  # False if the request was in the scheduler before the recording began
    plan_delay_seconds: float = 0.0  # seconds to the next `plan`; until then the router handled other requests or text


@dataclass(slots=True)
class WorkloadTrace:
    """Requests to simulate, and facts of the recording about the run and the shards' speed."""

    arrivals: list[RequestArrival]
    recorded_stats: RunStats | None = None  # as recorded
    timing_profile: TimingProfile | None = None
    next_hashes: dict[bytes, list[bytes]] = field(default_factory=dict)  # by block hash: the hashes that followed it

    def make_replaying_hasher(self) -> Callable[[bytes, GenericSequence[int], int], GenericSequence[bytes]]:
        """Return a hasher that repeats the recorded hashes of blocks; a block without one gets a unique hash."""
        remaining = {before: deque(names) for before, names in self.next_hashes.items()}
        unique_tokens = count(1)

        def replay_hashes(parent_hash: bytes, tokens: GenericSequence[int], block_size: int) -> list[bytes]:
            """Return hashes for the blocks that the tokens fill; only the number of tokens counts, all are zeros."""
            hashes = [parent_hash]
            for _ in range(len(tokens) // block_size):
                recorded = remaining.get(hashes[-1])
                hashes.append(recorded.popleft() if recorded else hash_blocks(hashes[-1], [next(unique_tokens)], 1)[0])
            return hashes[1:]

        return replay_hashes


def load_trace(path: Path) -> WorkloadTrace:
    try:
        return TraceBuilder(Recording(path)).build_trace()
    except BadRecording:
        if not is_plain_trace(path):
            raise
        return load_plain_trace(path)


# -- plain lists


def is_plain_trace(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as lines:
            first = json.loads(lines.readline())
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "prompt_tokens" in first


def load_plain_trace(path: Path) -> WorkloadTrace:
    arrivals, adapter_ids = [], dict[str, int]()
    for line_number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            arrivals.append(parse_plain_arrival(line_number, json.loads(line), adapter_ids))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadRecording(f"{path}: line {line_number} is no request of a trace ({error!r})") from None
    return WorkloadTrace(sorted(arrivals, key=lambda arrival: arrival.arrived_at))


def parse_plain_arrival(line_number: int, fields: dict[str, Any],
                        adapter_ids: dict[str, int] | None = None) -> RequestArrival:
    """Return the request of a line. `adapter_ids` gets a number for each name of an adapter; None: there are none."""
    num_prompt_tokens, num_output_tokens = int(fields["prompt_tokens"]), int(fields["output_tokens"])
    if num_prompt_tokens < 1 or num_output_tokens < 1:
        raise ValueError("prompt_tokens and output_tokens must be at least 1")
    prefix = str(fields.get("prefix", ""))
    adapter_name = "" if adapter_ids is None else str(fields.get("adapter", ""))
    namespace = f"{adapter_name}\0{prefix}".encode() if adapter_name and prefix else prefix.encode()
    num_prefix_tokens = min(int(fields.get("prefix_tokens", 0)), num_prompt_tokens) if prefix else 0
    # Each block that the prefix fills is hashed as if its index were its only token.
    prefix_hashes = hash_blocks(namespace, range(num_prefix_tokens // USUAL_BLOCK_SIZE), 1)
    request = Request(f"{line_number}", (PLACEHOLDER_TOKEN,) * num_prompt_tokens,
                      max(num_output_tokens, int(fields.get("max_new_tokens", num_output_tokens))),
                      end_tokens=PLACEHOLDER_END_TOKENS, priority=int(fields.get("priority", 0)),
                      tenant=Tenant(str(fields.get("tenant", ""))), timeout=fields.get("timeout"),
                      cache_namespace=namespace, block_hashes=prefix_hashes,
                      adapter=None if adapter_ids is None or not adapter_name else LoadableResource(
                          ADAPTER, adapter_ids.setdefault(adapter_name, len(adapter_ids) + 1)))
    return RequestArrival(float(fields["at"]), request, num_output_tokens, fields.get("leaves_after"))


# -- recordings


class TraceBuilder(Replay):
    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._stats = RunStats()
        self._timing_collector = TimingCollector()
        self._arrivals: dict[int, RequestArrival] = {}
        self._rejected: list[RequestArrival] = []
        self._ended_sequences: set[int] = set()
        self._awaiting_plan: list[RequestArrival] = []
        self._next_hashes: dict[bytes, list[bytes]] = {}

    def build_trace(self) -> WorkloadTrace:
        result = self.run()
        if result.difference is not None:
            raise BadRecording(f"the recording does not replay, so nothing is learned from it: {result.difference}")
        assert self._scheduler is not None  # `run` raises an error if it restored none
        self._stats.ended_at = result.ended_at
        self._estimate_output_tokens()
        arrivals = sorted([*self._arrivals.values(), *self._rejected], key=lambda arrival: arrival.arrived_at)
        return WorkloadTrace(arrivals, self._stats, self._timing_collector.make_profile(self._scheduler.cost_model),
                             self._next_hashes)

    # -- called during the replay

    def observe_start(self, scheduler: Scheduler, now: float) -> None:
        self._stats.started_at = now
        for sequence in scheduler.sequences:
            request, num_generated = sequence.request, len(sequence.generated)
            min_new_tokens = min(1, request.max_new_tokens)
            remaining_request = replace(
                request, prompt=(PLACEHOLDER_TOKEN,) * sequence.length, resumed_tokens=(), timeout=None,
                max_new_tokens=max(min_new_tokens, request.max_new_tokens - num_generated))
            self._arrivals[sequence.id] = RequestArrival(0.0, remaining_request, 0, is_arrival_known=False)
            self._stats.add_unfinished_at_start(sequence.id)

    def observe_block_hashes(self, parent_hash: bytes, hashes: GenericSequence[bytes]) -> None:
        for block_hash, next_hash in pairwise([parent_hash, *hashes]):
            self._next_hashes.setdefault(block_hash, []).append(next_hash)

    def observe_call(self, call: RecordedCall, result: CallResult, scheduler: Scheduler) -> None:
        if call.method == "plan":
            for arrival in self._awaiting_plan:
                arrival.plan_delay_seconds = call.recorded_at - self._stats.started_at - arrival.arrived_at
            self._awaiting_plan.clear()
        if isinstance(result, StepPlan):
            self._stats.record_plan(result, call.recorded_at)
            self._timing_collector.record_plan(scheduler.last_step_load, call.recorded_at)
        if not isinstance(result, list):
            return
        match call.method:
            case "submit":
                request = request_from_json(call.arguments[0])
                arrival = RequestArrival(call.recorded_at - self._stats.started_at, request, 0)
                sequence_id = self._stats.record_submission(result, call.recorded_at)
                if sequence_id is None:
                    self._rejected.append(arrival)
                else:
                    self._arrivals[sequence_id] = arrival
                    self._awaiting_plan.append(arrival)
            case "complete_step":
                self._timing_collector.record_answered_step(call.arguments[2], call.recorded_at)
                self._stats.record_events(result, call.recorded_at)
            case "on_shards_lost":
                self._timing_collector.clear_steps_in_flight()
                self._stats.reset_preemption_tracking()
            case "cancel":
                self._record_cancellation(call.arguments[0], call.recorded_at)
        self._ended_sequences.update(event.sequence_id for event in result
                                     if isinstance(event, SequenceFinished | SequenceFailed))

    def _record_cancellation(self, sequence_id: int, now: float) -> None:
        """Assume that a request that had tokens wants no more than those, and that one that had none is cancelled after
        the same time in every simulation."""
        if (sequence_id in self._arrivals and sequence_id not in self._ended_sequences
            and not self._stats.num_tokens_of(sequence_id)):
            self._arrivals[sequence_id].cancelled_after_seconds = (
                now - self._stats.started_at - self._arrivals[sequence_id].arrived_at)
        self._ended_sequences.add(sequence_id)

    def _estimate_output_tokens(self) -> None:
        """Set `num_output_tokens`: the number recorded, also if a request was unfinished at the end, or if it is 0 the
        median of the requests with tokens, limited by `max_new_tokens`."""
        num_tokens = {sequence_id: self._stats.num_tokens_of(sequence_id) for sequence_id in self._arrivals}
        median_tokens = median_low([number for number in num_tokens.values() if number] or [1])
        for sequence_id, arrival in self._arrivals.items():
            arrival.num_output_tokens = num_tokens[sequence_id] or min(median_tokens, arrival.request.max_new_tokens)
        for arrival in self._rejected:
            arrival.num_output_tokens = min(median_tokens, arrival.request.max_new_tokens)
