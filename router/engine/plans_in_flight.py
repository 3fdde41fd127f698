"""Plans in flight, the oldest first: sent to the shards and not yet answered.

While steps are in flight one of them must end within ten times the duration of recent steps (`StepWatchdog`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from router.scheduler.messages import StepPlan

MIN_STEP_LIMIT_SECONDS = 5.0
NUM_RECENT_STEPS = 512
SLOW_STEP_QUANTILE = 0.99  # of the durations of recent steps
SLOW_STEP_FACTOR = 10.0  # how many times as long as that quantile, or as predicted, a step may take


@dataclass(frozen=True, slots=True)
class SentPlan:
    """A plan that was sent to the shards, and the future of its answer."""

    plan: StepPlan
    answer: "asyncio.Future[Any]"
    sent_at: float


class PlansInFlight:
    """Queue of the plans in flight. `on_answer` is called when an answer or an error arrives."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self._on_answer = on_answer
        self._plans: deque[SentPlan] = deque()

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[SentPlan]:
        return iter(self._plans)

    @property
    def total_predicted_seconds(self) -> float:
        """Predicted duration of all plans together."""
        return sum([sent.plan.predicted_seconds for sent in self._plans])

    def get_answered(self) -> SentPlan | None:
        """Return the oldest plan if it has its answer."""
        return self._plans[0] if self._plans and self._plans[0].answer.done() else None

    @property
    def oldest_sent_at(self) -> float:
        """Time at which the oldest plan was sent; infinity if there is none."""
        return self._plans[0].sent_at if self._plans else inf

    def add(self, plan: StepPlan, answer: "asyncio.Future[Any]", sent_at: float) -> None:
        answer.add_done_callback(self._on_done)
        self._plans.append(SentPlan(plan, answer, sent_at))

    def drop_oldest(self) -> None:
        """Remove the oldest plan, which was answered."""
        self._plans.popleft()

    async def wait_and_clear(self) -> None:
        """Wait for all answers, then drop the plans: no message of the next epoch may overtake one of this epoch."""
        if self._plans:
            await asyncio.wait([sent.answer for sent in self._plans])
        self.cancel_all()

    def cancel_all(self) -> None:
        """Drop all plans without waiting for their answers."""
        for sent in self._plans:
            sent.answer.remove_done_callback(self._on_done)
            sent.answer.add_done_callback(_retrieve_error)
            sent.answer.cancel()
        self._plans.clear()

    def _on_done(self, _: object) -> None:
        self._on_answer()


def _retrieve_error(answer: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a dropped answer, so that asyncio does not report it as never retrieved."""
    if not answer.cancelled():
        answer.exception()


class StepWatchdog:
    """Watchdog of the steps in flight: how many there are, and since when none of them has ended."""

    def __init__(self) -> None:
        self._last_progress_at = 0.0
        self._recent_durations: deque[float] = deque(maxlen=NUM_RECENT_STEPS)
        self._predicted_durations: deque[float] = deque()  # predicted seconds of the steps in flight, the oldest first

    def add_step(self, predicted_seconds: float, now: float) -> None:
        """Add a step that was sent; `predicted_seconds` is its predicted duration."""
        if not self._predicted_durations:
            self._last_progress_at = now
        self._predicted_durations.append(predicted_seconds)

    def finish_oldest_step(self, now: float) -> float:
        """Remove the oldest step, which was answered.

        Returns the seconds since it was sent, or since the answer of the step before if that came later.
        """
        self._predicted_durations.popleft()
        seconds, self._last_progress_at = now - self._last_progress_at, now
        self._recent_durations.append(seconds)
        return seconds

    def clear_steps(self) -> None:
        self._predicted_durations.clear()

    @property
    def max_seconds_without_progress(self) -> float:
        """Seconds without progress that are accepted.

        The prediction for the oldest step counts like a recent duration: a long prompt may take longer than any recent
        step.
        """
        slowest = (sorted(self._recent_durations)[int(SLOW_STEP_QUANTILE * (len(self._recent_durations) - 1))]
                   if self._recent_durations else 0.0)
        predicted = self._predicted_durations[0] if self._predicted_durations else 0.0
        return max(MIN_STEP_LIMIT_SECONDS, SLOW_STEP_FACTOR * slowest, SLOW_STEP_FACTOR * predicted)

    def seconds_without_progress(self, now: float) -> float:
        """Return the seconds without progress; 0 if no step is in flight."""
        return now - self._last_progress_at if self._predicted_durations else 0.0
