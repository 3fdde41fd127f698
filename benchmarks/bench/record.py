"""What was asked, and what came of it and when. All times are seconds since the run began. Knows no server."""

from array import array
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Ask:
    """What is going to be asked. In a closed loop nobody knows when, and there is no `at`."""

    number: int
    prompt: str
    output_tokens: int
    prompt_tokens: int | None = None  # as far as they were counted beforehand
    adapter: str = ""
    at: float | None = None


def no_times() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Record:
    ask: Ask
    sent: float
    ended: float = 0.0
    times: "array[float]" = field(default_factory=no_times)  # of every event that brought tokens, if they were streamed
    num_tokens: int = 0
    prompt_tokens: int | None = None  # as the server counted them
    told_seconds: float | None = None  # by the server's own clock, if it tells them
    status: int = 0
    error: str = ""

    @property
    def due(self) -> float:
        """When it should have been sent, from which it waited: who sends late makes nobody wait less."""
        return self.sent if self.ask.at is None else min(self.ask.at, self.sent)

    @property
    def latency(self) -> float:
        return self.ended - self.due

    @property
    def first_token(self) -> float | None:
        """How long it took to come."""
        return self.times[0] - self.due if self.times else None

    @property
    def gaps(self) -> list[float]:
        """Between two events."""
        return [after - before for before, after in pairwise(self.times)]

    @property
    def seconds_per_token(self) -> float | None:
        """Behind the first one."""
        if not self.times or self.num_tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.num_tokens - 1)
