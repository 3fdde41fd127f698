"""Plans in flight, the oldest first: sent to the shards and not yet answered. The readiness of the server depends on
their progress: one of them must be answered within ten times the longest usual or predicted duration of a step, or
within five seconds if that is longer."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from router.scheduler.shard_messages import StepPlan

MIN_STEP_LIMIT_SECONDS = 5.0
NUM_RECENT_STEPS = 512
SLOW_STEP_QUANTILE = 0.99  # of the durations of recent steps
SLOW_STEP_FACTOR = 10.0  # how many times as long as that quantile, or as predicted, a step may take


@dataclass(slots=True)
class PlanInFlight:
    """Plan that was sent to the shards, and the future of its answer."""

    plan: StepPlan
    answer: "asyncio.Future[Any]"


class PlansInFlight:
    """Queue of the plans in flight, and since when none of them was answered."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        """`on_answer` is called when an answer or an error arrives."""
        self._on_done = lambda _: on_answer()  # one object, by which it can be removed from an answer's callbacks
        self._plans: deque[PlanInFlight] = deque()
        self._last_progress_at = 0.0
        self._recent_durations: deque[float] = deque(maxlen=NUM_RECENT_STEPS)

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[PlanInFlight]:
        return iter(self._plans)

    @property
    def total_predicted_seconds(self) -> float:
        return sum([in_flight.plan.predicted_seconds for in_flight in self._plans])

    def get_answered(self) -> PlanInFlight | None:
        """Return the oldest plan if it has its answer."""
        return self._plans[0] if self._plans and self._plans[0].answer.done() else None

    def add(self, plan: StepPlan, answer: "asyncio.Future[Any]", sent_at: float) -> None:
        if not self._plans:
            self._last_progress_at = sent_at
        answer.add_done_callback(self._on_done)
        self._plans.append(PlanInFlight(plan, answer))

    def drop_oldest(self, answered_at: float) -> float:
        """Remove the oldest plan, which was answered. Returns the seconds since it was sent, or since the answer of the
        plan before if that came later."""
        self._plans.popleft()
        seconds, self._last_progress_at = answered_at - self._last_progress_at, answered_at
        self._recent_durations.append(seconds)
        return seconds

    async def wait_and_clear(self) -> None:
        """Wait for all answers, then drop the plans: no message of the next epoch may overtake one of this epoch."""
        if self._plans:
            await asyncio.wait([in_flight.answer for in_flight in self._plans])
        self.cancel_all()

    def cancel_all(self) -> None:
        """Drop all plans without waiting for their answers."""
        for in_flight in self._plans:
            in_flight.answer.remove_done_callback(self._on_done)
            # An error that nobody retrieves would be reported by asyncio.
            in_flight.answer.add_done_callback(lambda answer: None if answer.cancelled() else answer.exception())
            in_flight.answer.cancel()
        self._plans.clear()

    @property
    def no_progress_limit_seconds(self) -> float:
        """Seconds without progress that are accepted. The prediction for the oldest plan counts like a recent duration:
        a long prompt may take longer than any recent step."""
        slowest = (sorted(self._recent_durations)[int(SLOW_STEP_QUANTILE * (len(self._recent_durations) - 1))]
                   if self._recent_durations else 0.0)
        predicted = self._plans[0].plan.predicted_seconds if self._plans else 0.0
        return max(MIN_STEP_LIMIT_SECONDS, SLOW_STEP_FACTOR * slowest, SLOW_STEP_FACTOR * predicted)

    def seconds_without_progress(self, now: float) -> float:
        """Return the seconds without progress; 0 if no plan is in flight."""
        return now - self._last_progress_at if self._plans else 0.0
