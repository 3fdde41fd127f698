"""Readiness of the server, which depends on its shards and on the progress of the plans in flight."""

from router.engine.plans_in_flight import PlansInFlight

STARTING_REASON = "the server is starting"


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
                          self._plans_in_flight.no_progress_limit_seconds)
        if not self._unready_reason and waiting > bound:
            return f"no step has ended for {waiting:.1f} seconds, where {bound:.1f} are the most"
        return self._unready_reason
