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

from router.request import Request
from router.scheduler.cost_model import CostModel, Load
from router.scheduler.events import Entered, Expired, Finished, Produced
from router.scheduler.plan import Answer, AnswerRow, Measurement, ModelFacts, Plan, Prefill
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.scheduler.timeline import RUNNING, Story


@dataclass(frozen=True, slots=True)
class Model:
    """True cost coefficients of the simulated shard, in seconds per step, row, prompt token and cache slot read."""

    per_step: float
    per_row: float
    per_token: float
    per_place: float
    device: str = "cpu"

    def seconds(self, load: Load) -> float:
        return (self.per_step + self.per_row * load.rows + self.per_token * load.chunk_tokens
                + self.per_place * load.context)

    def facts(self, num_blocks: int, block_size: int = 16) -> ModelFacts:
        loads = [Load(1, 0, 1), Load(64, 0, 64), Load(64, 0, 64_000), Load(1, 4096, 4096), Load(2, 4096, 4096)]
        measured = tuple(Measurement(m.rows, m.chunk_tokens, m.context, self.seconds(m)) for m in loads)
        return ModelFacts("clockwork", self.device, "none", 512, 2**20, block_size, num_blocks,
                          measurements=measured)


@dataclass(slots=True)
class Taken:
    """Record of one step."""

    plan: Plan
    sent_at: float
    load: Load
    chunk_load: Load  # the part of `load` that comes from prompt chunks
    seconds: float
    is_outlier: bool
    ended_at: float
    heard_at: float


@dataclass(slots=True)
class Life:
    request: Request
    arrival: float
    first_token_at: float | None = None
    ended_at: float | None = None
    token_times: list[float] = field(default_factory=list)
    story: Story | None = None
    foreseen: float = 0.0  # predicted wait at arrival, in seconds
    is_refused: bool = False
    is_expired: bool = False

    @property
    def before_start(self) -> float:
        """Seconds from arrival to the first step of the request."""
        assert self.story is not None
        started = next(start for cause, start, _ in self.story.intervals(inf) if cause in RUNNING)
        return started - self.arrival

    @property
    def wait(self) -> float:
        assert self.first_token_at is not None
        return self.first_token_at - self.arrival


class Clockwork:
    """Event loop of the simulation: requests arrive, the scheduler plans steps, the cost model times them."""

    def __init__(self, policy: Policy, model: Model, num_blocks: int = 40_000, *, seed: int = 0, block_size: int = 16,
                 latency: float = 0.0, foresee: bool = False,
                 luck: Callable[[random.Random], tuple[float, bool]] = lambda _: (1.0, False),
                 core: Callable[[Policy, ModelFacts], Scheduler] = Scheduler) -> None:
        self.policy, self.model, self.luck = policy, model, luck
        self.foresee = foresee
        self.latency = latency  # seconds that every message travels, each way
        self.random = random.Random(seed)
        self.now = 0.0
        facts = model.facts(num_blocks, block_size)
        self.core = core(policy, facts)
        self.core.shards_ready(facts, 1, 0.0)
        self.lives: dict[int, Life] = {}
        self.taken: list[Taken] = []
        self.refused = 0
        self.on_end: Callable[[Life], None] = lambda _: None
        self.prompt_tokens_run = 0
        self._arrivals: list[tuple[float, int, Request]] = []
        self._tickets = count()
        self._under_way: deque[Taken] = deque()

    def arrive(self, request: Request, at: float = 0.0) -> None:
        heapq.heappush(self._arrivals, (at, next(self._tickets), request))

    def assume(self, factor: float) -> None:
        """Multiply the coefficients of the scheduler's cost model by `factor`, so that its predictions are wrong."""
        a, b, c, d = (value * factor for value in self.core.costs.coefficients)
        self.core.costs = CostModel((a, b, c, d))

    def run(self, until: Callable[["Clockwork"], bool] = lambda _: False) -> "Clockwork":
        while (self._under_way or self._arrivals) and not until(self):
            self._advance()
            while (plan := self.core.plan(self.now)) is not None:
                self._send(plan)
        return self

    def _advance(self) -> None:
        """Advance the clock to the next arrival, step result or wake-up time of the scheduler, and handle it."""
        answered = self._under_way[0].heard_at if self._under_way else inf
        wake_at = self.core.wake_at
        if wake_at is not None and wake_at <= min(answered, self._arrivals[0][0] if self._arrivals else inf):
            self.now = max(self.now, wake_at)
            self._expire()
        elif self._arrivals and self._arrivals[0][0] <= answered:
            self.now, _, request = heapq.heappop(self._arrivals)
            self._submit(request)
        else:
            self.now = answered
            self._complete(self._under_way.popleft())

    def _submit(self, request: Request) -> None:
        foreseen = self.core._admission.predicted_wait(request.tenant) if self.foresee else 0.0
        first = self.core.submit(request, self.now)[0]
        if isinstance(first, Entered):
            story = self.core.story(first.sequence) if self.core.num_unfinished else None
            self.lives[first.sequence] = Life(request, self.now, story=story, foreseen=foreseen)
        else:
            self.refused += 1
            self.on_end(Life(request, self.now, is_refused=True))

    def _expire(self) -> None:
        for event in self.core.expire(self.now):
            if isinstance(event, Expired | Finished):
                life = self.lives[event.sequence]
                life.ended_at, life.is_expired = self.now, True
                self.on_end(life)

    def _send(self, plan: Plan) -> None:
        load = self.core._in_flight[-1].load or Load()
        chunks = [chunk for message in plan.messages if isinstance(message, Prefill) for chunk in message.chunks]
        chunk_load = Load(len(chunks), sum(c.length for c in chunks), sum(c.start + c.length for c in chunks))
        self.prompt_tokens_run += chunk_load.chunk_tokens
        factor, is_outlier = self.luck(self.random)
        seconds = self.model.seconds(load) * factor if plan.members else 0.0
        last = self._under_way[-1].ended_at if self._under_way else 0.0
        end = max(self.now + self.latency, last) + seconds
        self._under_way.append(Taken(plan, self.now, load, chunk_load, seconds, is_outlier, end, end + self.latency))

    def _complete(self, step: Taken) -> None:
        self.taken.append(step)
        rows = {number: AnswerRow((7,), (0.0,)) for number in step.plan.expects}
        for event in self.core.complete(step.plan.order, Answer(1, step.seconds, rows, {}), {}, self.now):
            if isinstance(event, Produced):
                for life in map(self.lives.__getitem__, event.counts):
                    life.first_token_at = self.now if life.first_token_at is None else life.first_token_at
                    life.token_times.append(self.now)
            elif isinstance(event, Finished):
                self.lives[event.sequence].ended_at = self.now
                self.on_end(self.lives[event.sequence])
