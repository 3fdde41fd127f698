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
STARTING_REASON = "the server is starting"


@dataclass(slots=True)
class SentPlan:
    plan: StepPlan
    answer: "asyncio.Future[Any]"


class PlansInFlight:
    """Queue of the plans in flight, and since when none of them was answered."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        """`on_answer` is called when an answer or an error arrives."""
        self._on_done = lambda _: on_answer()  # one object, by which it can be removed from an answer's callbacks
        self._plans: deque[SentPlan] = deque()
        self._last_progress_at = 0.0
        self._recent_durations: deque[float] = deque(maxlen=NUM_RECENT_STEPS)

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[SentPlan]:
        return iter(self._plans)

    @property
    def total_predicted_seconds(self) -> float:
        return sum([sent.plan.predicted_seconds for sent in self._plans])

    def get_answered(self) -> SentPlan | None:
        """Return the oldest plan if it has its answer."""
        return self._plans[0] if self._plans and self._plans[0].answer.done() else None

    def add(self, plan: StepPlan, answer: "asyncio.Future[Any]", sent_at: float) -> None:
        if not self._plans:
            self._last_progress_at = sent_at
        answer.add_done_callback(self._on_done)
        self._plans.append(SentPlan(plan, answer))

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
            await asyncio.wait([sent.answer for sent in self._plans])
        self.cancel_all()

    def cancel_all(self) -> None:
        """Drop all plans without waiting for their answers."""
        for sent in self._plans:
            sent.answer.remove_done_callback(self._on_done)
            # An error that nobody retrieves would be reported by asyncio.
            sent.answer.add_done_callback(lambda answer: None if answer.cancelled() else answer.exception())
            sent.answer.cancel()
        self._plans.clear()

    @property
    def max_seconds_without_progress(self) -> float:
        """Seconds without progress that are accepted. The prediction for the oldest plan counts like a recent duration:
        a long prompt may take longer than any recent step."""
        slowest = (sorted(self._recent_durations)[int(SLOW_STEP_QUANTILE * (len(self._recent_durations) - 1))]
                   if self._recent_durations else 0.0)
        predicted = self._plans[0].plan.predicted_seconds if self._plans else 0.0
        return max(MIN_STEP_LIMIT_SECONDS, SLOW_STEP_FACTOR * slowest, SLOW_STEP_FACTOR * predicted)

    def seconds_without_progress(self, now: float) -> float:
        """Return the seconds without progress; 0 if no plan is in flight."""
        return now - self._last_progress_at if self._plans else 0.0


class Health:
    """Readiness of the server: the shards are connected, and steps make progress. Initially it is starting."""

    def __init__(self, plans_in_flight: PlansInFlight) -> None:
        self._plans_in_flight = plans_in_flight
        self._unready_reason = STARTING_REASON
        self._is_shut_down = False

    def set_ready(self) -> None:
        self.set_unready("")

    def set_unready(self, reason: str) -> None:
        """Become unready until the next call of `set_ready`."""
        if not self._is_shut_down:
            self._unready_reason = reason

    def set_unready_permanently(self, reason: str) -> None:
        """Become unready for good. Steps in flight may still end."""
        self._unready_reason, self._is_shut_down = reason, True

    def why_unavailable(self, now: float) -> str:
        """Return why the router should get no requests now, or an empty string."""
        waiting, bound = (self._plans_in_flight.seconds_without_progress(now),
                          self._plans_in_flight.max_seconds_without_progress)
        if not self._unready_reason and waiting > bound:
            return f"no step has ended for {waiting:.1f} seconds, where {bound:.1f} are the most"
        return self._unready_reason
