"""Requests and their outcomes. All times are seconds since the start of the run."""

from array import array
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request to send, not before `at`, if it has a time of its own."""

    number: int
    prompt: str
    output_tokens: int
    prompt_tokens: int | None = None  # None: not counted in advance
    adapter: str = ""
    at: float | None = None


def make_empty_times() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class RequestRecord:
    """Outcome of one request: when it was sent, when its tokens arrived and when it ended, with its status and error.
    """

    ask: PlannedRequest
    sent: float
    ended: float = 0.0
    times: "array[float]" = field(default_factory=make_empty_times)  # arrival times of events with tokens, if streamed
    num_tokens: int = 0
    prompt_tokens: int | None = None  # as the server counted them
    told_seconds: float | None = None  # latency by the server's own clock, if it reports one
    status: int = 0
    error: str = ""

    @property
    def due_at(self) -> float:
        """When the request should have been sent. Latencies count from here, so that sending late hides no waiting."""
        return self.sent if self.ask.at is None else min(self.ask.at, self.sent)

    @property
    def latency(self) -> float:
        return self.ended - self.due_at

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds to the first token (TTFT)."""
        return self.times[0] - self.due_at if self.times else None

    @property
    def inter_token_times(self) -> list[float]:
        """Seconds between consecutive events."""
        return [after - before for before, after in pairwise(self.times)]

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds per token after the first one."""
        if not self.times or self.num_tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.num_tokens - 1)
