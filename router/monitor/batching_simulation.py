"""Simulation of watched requests under another way of batching, by the core of `weft simulate`: the same steps as the
live view has, so that both can be drawn side by side."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from time import thread_time
from typing import Any

from router.config import RouterConfig
from router.errors import InvalidRequest
from router.model_info import ModelInfo
from router.monitor.monitor import BufferedStepRange
from router.monitor.observed_steps import (
    DECODE_ROW,
    FINAL_CHUNK_ROW,
    ObservedSequence,
    ObservedStep,
    round_seconds,
    to_milliseconds,
)
from router.monitor.rates import describe_percentiles
from router.monitor.step_observer import StepObserver
from router.recording.scheduler_snapshot import PLACEHOLDER_END_TOKENS, PLACEHOLDER_TOKEN
from router.request import Request, RequestKind, Tenant
from router.scheduler.cost_model import CostTerms
from router.scheduler.events import SchedulerEvent
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepPlan
from router.simulation.simulate import Simulation
from router.simulation.timing_profile import TimingProfile
from router.simulation.trace import RequestArrival, WorkloadTrace

MAX_SIMULATED_REQUESTS = 256
MAX_SIMULATED_STEPS = 4000
MAX_SIMULATED_ROWS = 100_000  # of all steps
MAX_PROCESSOR_SECONDS = 1.0  # of the thread that simulates, since the router shares its interpreter


class LimitedStepObserver(StepObserver):
    """Observer that ends a simulation which takes too many steps. It observes each step as it is answered: later a
    sequence that was preempted may have ended."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.steps: list[ObservedStep] = []
        self._num_answers = self._num_rows = 0
        self._ends_at = thread_time() + MAX_PROCESSOR_SECONDS

    def record_answered_step(self, plan: StepPlan, events: list[SchedulerEvent], *, answered_at: float, seconds: float,
                             wall_seconds: float) -> None:
        self._num_answers += 1
        self._num_rows += len(plan.member_ids)
        if (self._num_answers > MAX_SIMULATED_STEPS or self._num_rows > MAX_SIMULATED_ROWS
                or thread_time() > self._ends_at):
            raise InvalidRequest(
                f"the simulation takes more than {MAX_SIMULATED_STEPS:,} steps, {MAX_SIMULATED_ROWS:,} rows of steps "
                f"or {MAX_PROCESSOR_SECONDS:g} s of computing; give fewer or shorter requests")
        super().record_answered_step(plan, events, answered_at=answered_at, seconds=seconds, wall_seconds=wall_seconds)
        self.steps += self.take_observed_steps()


@dataclass(frozen=True, slots=True)
class BatchingSettings:
    """Settings that a simulation changes; None leaves the server's."""

    batching: str = "static"
    max_batch_size: int | None = None
    static_window_ms: float = 0.0

    def to_scheduler_settings(self, config: RouterConfig, model_info: ModelInfo) -> SchedulerSettings:
        """Return the scheduler's settings. All requests are accepted: those watched were, too."""
        return SchedulerSettings.from_config(replace(
            config, batching=self.batching, max_batch_size=self.max_batch_size or config.max_batch_size,
            static_window_ms=self.static_window_ms, max_concurrent_requests=MAX_SIMULATED_REQUESTS,
            max_queue_requests=None, max_queue_tokens=None, max_queue_ms=None), model_info)


@dataclass(frozen=True, slots=True)
class SimulatedBatching:
    """Steps and sequences of a simulation, as JSON. Times are seconds since the first arrival."""

    steps: list[dict[str, Any]]
    cached_tokens: list[int]  # of each request
    summary: dict[str, Any]


def simulate_batching(arrivals: Sequence[RequestArrival], settings: SchedulerSettings, model_info: ModelInfo,
                      timing_profile: TimingProfile, seed: int = 0) -> SimulatedBatching:
    """Simulate the requests, which are in order of arrival: that at index i is the sequence i + 1. Raises
    InvalidRequest if that takes too many steps."""
    simulation = Simulation(settings, model_info, WorkloadTrace([*arrivals]), timing_profile, seed)
    simulation.observer = observer = LimitedStepObserver(simulation.scheduler)
    simulation.run()
    steps = [step.to_json(0.0) for step in observer.steps]
    submitted_at = {number: arrival.arrived_at for number, arrival in enumerate(arrivals, 1)}
    cached = [observer.sequences[number].num_cached_tokens if number in observer.sequences else 0
              for number in submitted_at]
    return SimulatedBatching(steps, cached, summarize_steps(steps, submitted_at))


def make_arrivals(sequences: Sequence[ObservedSequence]) -> list[RequestArrival]:
    """Return the arrivals of watched sequences, which are in order of their submission. They generate what they did;
    adapters count as loaded."""
    return [RequestArrival(sequence.submitted_at - sequences[0].submitted_at, Request(
        sequence.request_id, (PLACEHOLDER_TOKEN,) * sequence.num_prompt_tokens,
        max(sequence.max_new_tokens, sequence.num_output_tokens, 1), end_tokens=PLACEHOLDER_END_TOKENS,
        priority=sequence.priority, tenant=Tenant(sequence.tenant_name or ""),
        cache_namespace=sequence.cache_namespace, block_hashes=tuple(sequence.block_hashes)),
        max(sequence.num_output_tokens, 1)) for sequence in sequences]


def select_sequences(step_range: BufferedStepRange) -> list[ObservedSequence]:
    """Return the sequences of a range of steps that can be simulated, in order of their submission."""
    return sorted((sequence for sequence in step_range.sequences.values()
                   if sequence.kind is RequestKind.GENERATE and sequence.tenant_name is not None),
                  key=lambda sequence: (sequence.submitted_at, sequence.id))


def make_timing_profile(steps: Sequence[dict[str, Any]], coefficients: CostTerms) -> TimingProfile:
    """Return the speed of the server: its learned costs, and the median time between two of the steps."""
    overheads = [max(step["wall_ms"] - step["ms"], 0.0) / 1000 for step in steps if step["rows"]]
    overhead = [median(overheads)] if overheads else []
    return TimingProfile(coefficients, idle_overheads=overhead, pipelined_overheads=overhead)


def parse_steps(step_range: BufferedStepRange) -> list[dict[str, Any]]:
    return [json.loads(step.json_text) for step in step_range.steps]


def summarize_steps(steps: Sequence[dict[str, Any]], submitted_at: dict[int, float]) -> dict[str, Any]:
    """Return duration, throughput and latencies of steps, recorded or simulated."""
    num_tokens, batch_sizes = 0, []
    waits: dict[float, int] = {}
    first_tokens: dict[float, int] = {}
    gaps: dict[float, int] = {}
    last_token_at: dict[int, float] = {}
    started_ids: set[int] = set()
    for step in steps:
        now = step["t"]
        for _, sequence_id in step["admitted"]:
            if sequence_id not in started_ids and sequence_id in submitted_at:
                started_ids.add(sequence_id)
                waited = max(now - step["wall_ms"] / 1000 - submitted_at[sequence_id], 0.0)
                waits[waited] = waits.get(waited, 0) + 1
        if step["rows"]:
            batch_sizes.append(len(step["rows"]))
        for _, sequence_id, count, kind in step["rows"]:
            num_new_tokens = count if kind == DECODE_ROW else int(kind == FINAL_CHUNK_ROW)
            if not num_new_tokens or sequence_id not in submitted_at:
                continue
            num_tokens += num_new_tokens
            if sequence_id in last_token_at:
                latency, counts = now - last_token_at[sequence_id], gaps
            else:
                latency, counts = now - submitted_at[sequence_id], first_tokens
            counts[latency] = counts.get(latency, 0) + 1
            last_token_at[sequence_id] = now
    seconds = steps[-1]["t"] - min(submitted_at.values()) if steps and submitted_at else 0.0
    return {"seconds": round_seconds(seconds), "tokens": num_tokens,
            "tokens_per_second": round(num_tokens / seconds, 1) if seconds > 0 else None,
            "steps": len(batch_sizes), "batch_size": round(fmean(batch_sizes), 2) if batch_sizes else None,
            "step_ms": to_milliseconds(fmean(step["wall_ms"] for step in steps if step["rows"]) / 1000)
            if batch_sizes else None,
            "first_token_ms": describe_percentiles(first_tokens), "gap_ms": describe_percentiles(gaps),
            "wait_ms": describe_percentiles(waits)}
