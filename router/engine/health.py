"""Readiness of the router: the shards are connected, and steps make progress. Time is an argument."""

from router.engine.plans_in_flight import StepWatchdog

STARTING_REASON = "the server is starting"
SHUTDOWN_REASON = "the server is shutting down"


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
