"""Simulation of a trace: the real scheduler on a virtual clock, with shards that are nothing but a `Pace`.

Requests arrive as in the trace and generate as many tokens as they did there. Which of them wait and run is decided
again by the scheduler; how long steps take follows from the pace. A simulation is deterministic: it uses no clock, I/O
or chance, and the seed chooses where the replay of the recorded noise begins.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from router.recording.replay import UsualRows
from router.scheduler.cost_model import CostModel
from router.scheduler.events import Entered, Event, Produced, Refused
from router.scheduler.plan import Answer, ModelFacts, Plan
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.simulation.report import Figures
from router.simulation.timing import Luck, Pace
from router.simulation.trace import Arrival, Trace

EPOCH = 1


@dataclass(frozen=True, slots=True)
class UnderWay:
    plan: Plan
    seconds: float
    answered: float


class Simulation:
    """Event loop of one simulated run."""

    def __init__(self, policy: Policy, facts: ModelFacts, trace: Trace, pace: Pace, seed: int = 0) -> None:
        self.figures = Figures()
        self.now = 0.0
        self._luck = Luck(pace, seed)
        # Several tokens per step are not simulated: a `Pace` does not hold their number.
        facts = replace(facts, tokens_per_step=1)
        self._core = Scheduler(policy, facts, trace.hasher())
        self._core.costs = CostModel(pace.coefficients)
        self._core.shards_ready(facts, EPOCH, self.now)
        self._wanted: dict[int, int] = {}  # tokens that each sequence has yet to generate
        self._under_way: deque[UnderWay] = deque()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = count()
        self._busy = 0.0  # until when the router handles requests and asks for no plan
        for resource in {resource for arrival in trace.arrivals for resource in arrival.request.needs}:
            self._core.available(resource, self.now)
        for arrival in trace.arrivals:
            self._at(arrival.at, lambda arrival=arrival: self._submit(arrival))  # type: ignore[misc]

    def run(self) -> Figures:
        while (moment := self._next_moment()) is not None:
            self.now = max(self.now, moment[0])
            moment[1]()
            while self.now >= self._busy and (plan := self._core.plan(self.now)) is not None:
                self._send(plan)
        return self.figures

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time, next(self._tickets), action))

    def _next_moment(self) -> tuple[float, Callable[[], None]] | None:
        """Return the next event: a request arrives or is cancelled, a step is answered, or `expire` is due."""
        moments: list[tuple[float, Callable[[], None]]] = []
        if self._agenda:
            moments.append((self._agenda[0][0], self._act))
        if self._under_way:
            moments.append((self._under_way[0].answered, self._complete))
        if self._core.wake_at is not None:
            moments.append((self._core.wake_at, self._expire))
        return min(moments, key=lambda moment: moment[0], default=None)

    def _act(self) -> None:
        heapq.heappop(self._agenda)[2]()

    def _submit(self, arrival: Arrival) -> None:
        self._busy = max(self._busy, self.now + arrival.noticed_after)
        self._at(self._busy, lambda: None)
        events = self._core.submit(arrival.request, self.now)
        number = self.figures.submitted(events, self.now, is_known=arrival.is_known)
        if number is not None:
            self._wanted[number] = arrival.output_tokens
            self._forget(events)
            if arrival.leaves_after is not None:
                self._at(arrival.at + arrival.leaves_after, lambda: self._leave(number))

    def _leave(self, number: int) -> None:
        if self._wanted.pop(number, None) is not None:
            self._core.cancel(number, self.now)

    def _expire(self) -> None:
        self._forget(self._core.expire(self.now))

    def _send(self, plan: Plan) -> None:
        self.figures.planned(plan, self.now)
        seconds = self._luck.seconds(self._core.last_load) if plan.members else 0.0
        before = self._under_way[-1].answered if self._under_way else None
        self._under_way.append(UnderWay(plan, seconds, self._luck.answered(self.now, before, seconds)))

    def _complete(self) -> None:
        done = self._under_way.popleft()
        stopped = {number: 1 for number in done.plan.expects if self._wanted.get(number) == 1}
        events = self._core.complete(done.plan.order, Answer(EPOCH, done.seconds, UsualRows(), {}), stopped, self.now)
        self.figures.heard(events, self.now)
        for event in events:
            if isinstance(event, Produced):
                for number in event.counts:
                    self._wanted[number] -= 1
        self._forget(events)

    def _forget(self, events: list[Event]) -> None:
        """Drop the sequences that got a terminal event."""
        for event in events:
            if not isinstance(event, Entered | Refused | Produced):
                self._wanted.pop(event.sequence, None)
