"""Simulation of a trace under other settings: the real scheduler on a virtual clock, with a `TimingProfile` as shards.
`python -P -m router.simulation.simulate JSON`, an object with the file `trace`; `like`, a recording whose shards and
settings are assumed (by default the trace itself, if it is one); `settings`, those to try; and `seed`."""

import heapq
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Protocol

from router.config import RouterConfig
from router.model_info import ModelInfo
from router.recording.recording_file import BadRecording, Recording
from router.recording.replay import RowsDefaultingToOneToken
from router.request import ADAPTER, LoadableResource
from router.scheduler.cost_model import CostModel
from router.scheduler.events import RequestAccepted, RequestRejected, SchedulerEvent, TokensGenerated
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepPlan, StepResult, UnloadResource
from router.simulation.run_stats import RunStats, format_table
from router.simulation.timing_profile import TimingProfile, TimingReplay
from router.simulation.trace import RequestArrival, WorkloadTrace, load_trace

SIMULATED_EPOCH = 1


class AnsweredStepObserver(Protocol):
    """Interface of an observer of the simulated scheduler's answered plans."""

    def record_answered_step(self, plan: StepPlan, events: list[SchedulerEvent], *, answered_at: float, seconds: float,
                             wall_seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    plan: StepPlan
    planned_at: float
    seconds: float
    answered_at: float


class Simulation:
    """Event loop of one simulated run. Requests arrive and generate as many tokens as in the trace; the scheduler
    decides again which of them wait and run, and the profile how long steps take. A simulation is deterministic: it
    uses no clock, I/O or chance, and the seed chooses where the replay of the recorded noise begins."""

    def __init__(self, settings: SchedulerSettings, model_info: ModelInfo, trace: WorkloadTrace,
                 timing_profile: TimingProfile, seed: int = 0, *, adapter_load_seconds: float | None = None) -> None:
        """`adapter_load_seconds`: how long an adapter takes to load; None: all adapters are loaded from the start."""
        self.stats = RunStats()
        self.now = 0.0
        self._noise_replay = TimingReplay(timing_profile, seed)
        # Several tokens per step are not simulated: a `TimingProfile` does not hold their number.
        self.model_info = model_info = replace(model_info, tokens_per_step=1)
        self._adapter_load_seconds = adapter_load_seconds
        self.observer: AnsweredStepObserver | None = None
        self.scheduler = Scheduler(settings, model_info, trace.make_replaying_hasher())
        self.scheduler.cost_model = CostModel(timing_profile.coefficients)
        self.scheduler.on_shards_ready(model_info, SIMULATED_EPOCH, self.now)
        self._num_tokens_left: dict[int, int] = {}  # tokens that each sequence has yet to generate
        self._steps_in_flight: deque[SimulatedStep] = deque()
        self._scheduled_actions: list[tuple[float, int, Callable[[], None]]] = []
        self._tie_breakers = count()
        self._last_answered_at = 0.0
        self._busy_until = 0.0  # until when the router handles requests and asks for no plan
        if adapter_load_seconds is None:
            for resource in {resource for arrival in trace.arrivals for resource in arrival.request.needed_resources}:
                self.scheduler.on_resource_loaded(resource, self.now)
        for arrival in trace.arrivals:
            self._schedule(arrival.arrived_at, lambda arrival=arrival: self._submit(arrival))  # type: ignore[misc]

    def run(self) -> RunStats:
        self.advance_until(inf)
        return self.stats

    def advance_until(self, until: float) -> None:
        """Play the events before this time."""
        while (event := self._next_event()) is not None and event[0] < until:
            self.now = max(self.now, event[0])
            event[1]()
            self._send_plans()

    def inject_arrival(self, arrival: RequestArrival) -> None:
        """Let a request arrive that is not in the trace, after `advance_until` the time of its arrival."""
        self.now = max(self.now, arrival.arrived_at)
        self._submit(arrival)
        self._send_plans()

    def _send_plans(self) -> None:
        while self.now >= self._busy_until and (plan := self.scheduler.plan(self.now)) is not None:
            self._send_plan(plan)
        if self._adapter_load_seconds is not None:
            self._execute_loads_and_unloads(self._adapter_load_seconds)

    def _execute_loads_and_unloads(self, load_seconds: float) -> None:
        """Load adapters in this time. Grammars are there at once, and so is the room of what is unloaded."""
        for command in self.scheduler.take_resource_commands(self.now):
            resource = command.resource
            if isinstance(command, UnloadResource):
                self._schedule(self.now, partial(self._on_resource_event, self.scheduler.on_resource_unloaded,
                                                 resource))
            else:
                is_adapter = resource.kind == ADAPTER
                self.stats.num_adapter_loads += is_adapter
                self._schedule(self.now + load_seconds * is_adapter,
                               partial(self._on_resource_event, self.scheduler.on_resource_loaded, resource))

    def _on_resource_event(self, report: Callable[[LoadableResource, float], list[SchedulerEvent]],
                           resource: LoadableResource) -> None:
        self._drop_ended(report(resource, self.now))

    def _schedule(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._scheduled_actions, (at, next(self._tie_breakers), action))

    def _next_event(self) -> tuple[float, Callable[[], None]] | None:
        """Return the next event: a request arrives or is cancelled, a step is answered, or `on_timer` is due."""
        candidates: list[tuple[float, Callable[[], None]]] = []
        if self._scheduled_actions:
            candidates.append((self._scheduled_actions[0][0], self._run_scheduled_action))
        if self._steps_in_flight:
            candidates.append((self._steps_in_flight[0].answered_at, self._complete_step))
        if self.scheduler.wake_at is not None:
            candidates.append((self.scheduler.wake_at,
                               lambda: self._drop_ended(self.scheduler.on_timer(self.now))))
        return min(candidates, key=lambda moment: moment[0], default=None)

    def _run_scheduled_action(self) -> None:
        heapq.heappop(self._scheduled_actions)[2]()

    def _submit(self, arrival: RequestArrival) -> None:
        self._busy_until = max(self._busy_until, self.now + arrival.plan_delay_seconds)
        self._schedule(self._busy_until, lambda: None)
        events = self.scheduler.submit(arrival.request, self.now)
        sequence_id = self.stats.record_submission(events, self.now, is_arrival_known=arrival.is_arrival_known)
        if sequence_id is not None:
            self._num_tokens_left[sequence_id] = arrival.num_output_tokens
            self._drop_ended(events)
            if arrival.cancelled_after_seconds is not None:
                self._schedule(arrival.arrived_at + arrival.cancelled_after_seconds,
                               lambda: self._cancel(sequence_id))

    def _cancel(self, sequence_id: int) -> None:
        if self._num_tokens_left.pop(sequence_id, None) is not None:
            self.scheduler.cancel(sequence_id, self.now)

    def _send_plan(self, plan: StepPlan) -> None:
        self.stats.record_plan(plan, self.now)
        seconds = self._noise_replay.step_seconds(self.scheduler.last_step_load) if plan.member_ids else 0.0
        previous_answered_at = self._steps_in_flight[-1].answered_at if self._steps_in_flight else None
        answered_at = self._noise_replay.answer_time(self.now, previous_answered_at, seconds)
        self._steps_in_flight.append(SimulatedStep(plan, self.now, seconds, answered_at))

    def _complete_step(self) -> None:
        step = self._steps_in_flight.popleft()
        stop_token_counts = {sequence_id: 1 for sequence_id in step.plan.output_ids
                             if self._num_tokens_left.get(sequence_id) == 1}
        result = StepResult(SIMULATED_EPOCH, step.seconds, RowsDefaultingToOneToken(), {})
        events = self.scheduler.complete_step(step.plan.last_message_number, result, stop_token_counts, self.now)
        self.stats.record_events(events, self.now)
        if self.observer is not None:
            self.observer.record_answered_step(step.plan, events, answered_at=self.now, seconds=step.seconds,
                                               wall_seconds=self.now - max(step.planned_at, self._last_answered_at))
        self._last_answered_at = self.now
        for event in events:
            if isinstance(event, TokensGenerated):
                for sequence_id in event.token_counts:
                    self._num_tokens_left[sequence_id] -= 1
        self._drop_ended(events)

    def _drop_ended(self, events: list[SchedulerEvent]) -> None:
        """Drop the sequences that got a terminal event."""
        for event in events:
            if not isinstance(event, RequestAccepted | RequestRejected | TokensGenerated):
                self._num_tokens_left.pop(event.sequence_id, None)


@dataclass(frozen=True, slots=True)
class SimulationCase:
    """Trace of requests, and the server that is simulated for it."""

    trace: WorkloadTrace
    timing_profile: TimingProfile
    config: RouterConfig
    model_info: ModelInfo
    seed: int = 0

    @classmethod
    def from_files(cls, trace_path: Path, like_path: Path | None, seed: int) -> "SimulationCase":
        parsed_trace = load_trace(trace_path)
        if like_path is None and parsed_trace.timing_profile is None:
            raise BadRecording(
                f"{trace_path} does not tell how fast shards are; name a recording that does: --like FILE")
        model_recording = Recording(like_path or trace_path)
        timing_profile = parsed_trace.timing_profile if like_path is None else load_trace(like_path).timing_profile
        assert timing_profile is not None
        return cls(parsed_trace, timing_profile, model_recording.config, model_recording.model_info, seed)

    @classmethod
    def for_model(cls, trace: WorkloadTrace, timing_profile: TimingProfile, model_info: ModelInfo) -> "SimulationCase":
        """Return the case of a server with default settings."""
        return cls(trace, timing_profile, RouterConfig(), model_info)

    def simulate(self, settings: Mapping[str, Any]) -> RunStats:
        """Simulate the trace with these settings changed. Raises ValueError for invalid settings."""
        return self.create_simulation(settings).run()

    def create_simulation(self, settings: Mapping[str, Any], *,
                          adapter_load_seconds: float | None = None) -> Simulation:
        config = RouterConfig(**asdict(self.config) | dict(settings))
        model_info = self.model_info
        if settings.get("max_batch_total_tokens"):
            model_info = replace(model_info,
                                 num_blocks=max(1, settings["max_batch_total_tokens"] // model_info.block_size))
        return Simulation(SchedulerSettings.from_config(config, model_info), model_info, self.trace,
                          self.timing_profile, self.seed, adapter_load_seconds=adapter_load_seconds)


def format_flags(settings: Mapping[str, Any]) -> str:
    flags = {name.replace("_", "-"): value for name, value in settings.items()}
    return " ".join(f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag} {value}"
                    for flag, value in flags.items())


def simulate_and_report(case: SimulationCase, settings: Mapping[str, Any]) -> str:
    started = time.monotonic()
    stats_by_run: dict[str, RunStats] = {}
    if case.trace.recorded_stats is not None:
        stats_by_run["recorded"] = case.trace.recorded_stats
    stats_by_run["simulated"] = case.simulate({})
    if settings:
        stats_by_run[format_flags(settings)] = case.simulate(settings)
    num_requests = stats_by_run["simulated"].num_requests
    return (f"{num_requests:,} requests, simulated in {time.monotonic() - started:.1f} s\n"
            + format_table(stats_by_run))


def make_simulation_case(arguments: Mapping[str, Any]) -> SimulationCase:
    like = arguments.get("like")
    return SimulationCase.from_files(Path(arguments["trace"]), Path(like) if like else None,
                                     int(arguments.get("seed", 0)))


def main() -> None:
    arguments = json.loads(sys.argv[1])
    try:
        sys.stdout.write(simulate_and_report(make_simulation_case(arguments), arguments.get("settings", {})) + "\n")
    except ValueError as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
