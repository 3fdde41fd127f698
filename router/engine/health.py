"""Readiness of the router: the shards are connected, and steps make progress.

While steps are in flight one of them must end within ten times the duration of recent steps. Time is an argument.
"""

from collections import deque

MIN_STEP_LIMIT_SECONDS = 5.0
NUM_RECENT_STEPS = 512
SLOW_STEP_QUANTILE = 0.99  # of the durations of recent steps
SLOW_STEP_FACTOR = 10.0  # how many times as long as that quantile, or as predicted, a step may take
STARTING_REASON = "the server is starting"
SHUTDOWN_REASON = "the server is shutting down"


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


class Health:
    """Readiness of the server; initially it is starting."""

    def __init__(self) -> None:
        self.watchdog = StepWatchdog()
        self._unready_reason = STARTING_REASON
        self._is_shut_down = False

    def set_ready(self) -> None:
        """Become ready: the shards are connected, and no step is in flight."""
        self.watchdog.clear_steps()
        self._unready_reason = self._unready_reason if self._is_shut_down else ""

    def set_unready(self, reason: str) -> None:
        """Become unready until the next call of `set_ready`."""
        self.watchdog.clear_steps()
        self._unready_reason = self._unready_reason if self._is_shut_down else reason

    def set_unready_permanently(self, reason: str) -> None:
        """Become unready for good. Steps in flight may still end."""
        self._unready_reason, self._is_shut_down = reason, True

    def why_unavailable(self, now: float) -> str:
        """Return why the router should get no requests now, or an empty string."""
        waiting, bound = self.watchdog.seconds_without_progress(now), self.watchdog.max_seconds_without_progress
        if not self._unready_reason and waiting > bound:
            return f"no step has ended for {waiting:.1f} seconds, where {bound:.1f} are the most"
        return self._unready_reason
