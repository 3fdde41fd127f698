"""Simulation of the real scheduler under a virtual clock, with a cost model in place of the shards.

The simulation is fast enough for long runs. All generated tokens are the same constant. Laws are checked in
`simulated_world.py`; this module only collects figures.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf

from router.model_info import ModelInfo, StepMeasurement
from router.request import Request, Tenant
from router.scheduler.cost_model import CostModel, StepLoad
from router.scheduler.events import RequestAccepted, SequenceExpired, SequenceFinished, TokensGenerated
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RUNNING_PHASES, RequestTimeline
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Prefill, StepPlan, StepResult, StepResultRow


def predict_wait(scheduler: Scheduler, tenant: Tenant) -> float:
    """Return the predicted seconds until a request that arrives now starts."""
    return scheduler._wait_forecast.correct_bias(scheduler._admission.predict_raw_wait(tenant))


@dataclass(frozen=True, slots=True)
class TrueCosts:
    """True cost coefficients of the simulated shard, in seconds per step, row, prompt token and cache slot read."""

    seconds_per_step: float
    seconds_per_row: float
    seconds_per_prompt_token: float
    seconds_per_slot: float
    device: str = "cpu"

    def compute_step_seconds(self, load: StepLoad) -> float:
        return (self.seconds_per_step + self.seconds_per_row * load.rows + self.seconds_per_prompt_token
                * load.chunk_tokens + self.seconds_per_slot * load.context)

    def make_model_info(self, num_blocks: int, block_size: int = 16) -> ModelInfo:
        loads = [StepLoad(1, 0, 1), StepLoad(64, 0, 64), StepLoad(64, 0, 64_000), StepLoad(1, 4096, 4096),
                 StepLoad(2, 4096, 4096)]
        measured = tuple(StepMeasurement(m.rows, m.chunk_tokens, m.context, self.compute_step_seconds(m))
                         for m in loads)
        return ModelInfo("clockwork", self.device, "none", 512, 2**20, block_size, num_blocks,
                         measurements=measured)


@dataclass(slots=True)
class TimedStep:
    """Record of one step."""

    plan: StepPlan
    sent_at: float
    load: StepLoad
    chunk_load: StepLoad  # the part of `load` that comes from prompt chunks
    seconds: float
    is_outlier: bool
    ended_at: float
    answered_at: float


@dataclass(slots=True)
class RequestHistory:
    request: Request
    arrived_at: float
    first_token_at: float | None = None
    ended_at: float | None = None
    token_times: list[float] = field(default_factory=list)
    timeline: RequestTimeline | None = None
    predicted_wait: float = 0.0  # predicted wait at arrival, in seconds
    is_rejected: bool = False
    is_expired: bool = False

    @property
    def seconds_to_start(self) -> float:
        """Seconds from arrival to the first step of the request."""
        assert self.timeline is not None
        started_at = next(start for cause, start, _ in self.timeline.intervals(inf) if cause in RUNNING_PHASES)
        return started_at - self.arrived_at

    @property
    def seconds_to_first_token(self) -> float:
        assert self.first_token_at is not None
        return self.first_token_at - self.arrived_at


class SchedulerSimulation:
    """Event loop of the simulation: requests arrive, the scheduler plans steps, the cost model times them."""

    def __init__(self, settings: SchedulerSettings, true_costs: TrueCosts, num_blocks: int = 40_000, *, seed: int = 0,
                 block_size: int = 16, latency: float = 0.0, predicts_waits: bool = False,
                 draw_noise: Callable[[random.Random], tuple[float, bool]] = lambda _: (1.0, False),
                 make_scheduler: Callable[[SchedulerSettings, ModelInfo], Scheduler] = Scheduler) -> None:
        self.settings, self.true_costs, self.draw_noise = settings, true_costs, draw_noise
        self.predicts_waits = predicts_waits
        self.latency = latency  # seconds that every message travels, each way
        self.random = random.Random(seed)
        self.now = 0.0
        model_info = true_costs.make_model_info(num_blocks, block_size)
        self.scheduler = make_scheduler(settings, model_info)
        self.scheduler.on_shards_ready(model_info, 1, 0.0)
        self.histories: dict[int, RequestHistory] = {}
        self.timed_steps: list[TimedStep] = []
        self.num_rejected = 0
        self.on_end: Callable[[RequestHistory], None] = lambda _: None
        self.num_prompt_tokens_run = 0
        self._arrivals: list[tuple[float, int, Request]] = []
        self._arrival_numbers = count()
        self._steps_in_flight: deque[TimedStep] = deque()

    def add_arrival(self, request: Request, arrives_at: float = 0.0) -> None:
        heapq.heappush(self._arrivals, (arrives_at, next(self._arrival_numbers), request))

    def scale_cost_model(self, factor: float) -> None:
        """Multiply the coefficients of the scheduler's cost model by `factor`, so that its predictions are wrong."""
        a, b, c, d = (value * factor for value in self.scheduler.cost_model.coefficients)
        self.scheduler.cost_model = CostModel((a, b, c, d))

    def run(self, should_stop: Callable[["SchedulerSimulation"], bool] = lambda _: False) -> "SchedulerSimulation":
        while (self._steps_in_flight or self._arrivals) and not should_stop(self):
            self._advance()
            while (plan := self.scheduler.plan(self.now)) is not None:
                self._send(plan)
        return self

    def _advance(self) -> None:
        """Advance the clock to the next arrival, step result or wake-up time of the scheduler, and handle it."""
        answered_at = self._steps_in_flight[0].answered_at if self._steps_in_flight else inf
        wake_at = self.scheduler.wake_at
        if wake_at is not None and wake_at <= min(answered_at, self._arrivals[0][0] if self._arrivals else inf):
            self.now = max(self.now, wake_at)
            self._expire()
        elif self._arrivals and self._arrivals[0][0] <= answered_at:
            self.now, _, request = heapq.heappop(self._arrivals)
            self._submit(request)
        else:
            self.now = answered_at
            self._complete(self._steps_in_flight.popleft())

    def _submit(self, request: Request) -> None:
        predicted_wait = predict_wait(self.scheduler, request.tenant) if self.predicts_waits else 0.0
        first_event = self.scheduler.submit(request, self.now)[0]
        if isinstance(first_event, RequestAccepted):
            timeline = (self.scheduler.get_request_timeline(first_event.sequence_id) if self.scheduler.num_unfinished
                        else None)
            self.histories[first_event.sequence_id] = RequestHistory(request, self.now, timeline=timeline,
                                                                     predicted_wait=predicted_wait)
        else:
            self.num_rejected += 1
            self.on_end(RequestHistory(request, self.now, is_rejected=True))

    def _expire(self) -> None:
        for event in self.scheduler.on_timer(self.now):
            if isinstance(event, SequenceExpired | SequenceFinished):
                history = self.histories[event.sequence_id]
                history.ended_at, history.is_expired = self.now, True
                self.on_end(history)

    def _send(self, plan: StepPlan) -> None:
        load = self.scheduler._unanswered_plans[-1].load or StepLoad()
        chunks = [chunk for message in plan.messages if isinstance(message, Prefill) for chunk in message.chunks]
        chunk_load = StepLoad(len(chunks), sum(c.length for c in chunks), sum(c.start + c.length for c in chunks))
        self.num_prompt_tokens_run += chunk_load.chunk_tokens
        factor, is_outlier = self.draw_noise(self.random)
        seconds = self.true_costs.compute_step_seconds(load) * factor if plan.member_ids else 0.0
        last_end = self._steps_in_flight[-1].ended_at if self._steps_in_flight else 0.0
        end = max(self.now + self.latency, last_end) + seconds
        self._steps_in_flight.append(TimedStep(plan, self.now, load, chunk_load, seconds, is_outlier, end,
                                               end + self.latency))

    def _complete(self, step: TimedStep) -> None:
        self.timed_steps.append(step)
        rows = {number: StepResultRow((7,), (0.0,)) for number in step.plan.output_ids}
        for event in self.scheduler.complete_step(step.plan.last_message_number, StepResult(1, step.seconds, rows, {}),
                                                  {}, self.now):
            if isinstance(event, TokensGenerated):
                for history in map(self.histories.__getitem__, event.token_counts):
                    history.first_token_at = self.now if history.first_token_at is None else history.first_token_at
                    history.token_times.append(self.now)
            elif isinstance(event, SequenceFinished):
                self.histories[event.sequence_id].ended_at = self.now
                self.on_end(self.histories[event.sequence_id])
