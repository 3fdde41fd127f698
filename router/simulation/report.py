"""Latency as clients see it: queue wait, time to first token and inter-token latency, from calls of the scheduler.

Recorded and simulated runs are measured by the same code.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan, nan

from router.scheduler.events import Entered, Event, Produced, Refused
from router.scheduler.plan import Embed, Plan, Prefill

KINDS = {"ttft": "first token", "wait": "waiting", "itl": "between tokens"}
SHARES = (50, 90, 99)


@dataclass(slots=True)
class Life:
    came: float
    is_known: bool = True  # whether the request arrived during the measurement
    started: float | None = None
    last_token: float | None = None
    num_tokens: int = 0


@dataclass(slots=True)
class Figures:
    began: float = 0.0
    ended: float = 0.0
    num_requests: int = 0
    num_refused: int = 0
    num_yields: int = 0
    num_tokens: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in KINDS})
    _lives: dict[int, Life] = field(default_factory=dict)
    _entered: set[int] = field(default_factory=set)  # sequences that have started since the shards were last lost

    def is_there(self, number: int) -> None:
        """Add a sequence that was unfinished when the measurement began."""
        self._lives[number] = Life(0.0, is_known=False)

    def submitted(self, events: list[Event], now: float, *, is_known: bool = True) -> int | None:
        """Count a request; return the number of its sequence if it was accepted."""
        self.num_requests += is_known
        self.num_refused += isinstance(events[0], Refused)
        if not isinstance(events[0], Entered):
            return None
        self._lives[events[0].sequence] = Life(now, is_known)
        return events[0].sequence

    def planned(self, plan: Plan, now: float) -> None:
        for message in plan.messages:
            if isinstance(message, Prefill | Embed):
                for newcomer in message.newcomers:
                    self._start(newcomer.sequence, now)

    def _start(self, number: int, now: float) -> None:
        self.num_yields += number in self._entered
        self._entered.add(number)
        life = self._lives[number]
        if life.started is None and life.is_known:
            life.started = now
            self.seconds["wait"].append(now - life.came)

    def heard(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, Produced):
                for number, count in event.counts.items():
                    self._token(self._lives[number], count, now)
        self.ended = max(self.ended, now)

    def _token(self, life: Life, count: int, now: float) -> None:
        if life.last_token is not None:
            self.seconds["itl"].append(now - life.last_token)
        elif life.is_known:
            self.seconds["ttft"].append(now - life.came)
        life.last_token = now
        life.num_tokens += count
        self.num_tokens += count

    def shards_lost(self) -> None:
        """Start counting preemptions afresh: a sequence that starts again after a loss was not preempted."""
        self._entered.clear()

    def tokens_of(self, number: int) -> int:
        return self._lives[number].num_tokens

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / (self.ended - self.began) if self.ended > self.began else 0.0

    def percentile(self, kind: str, share: float) -> float:
        """Return a percentile in seconds; NaN if there were no values."""
        return percentile(self.seconds[kind], share)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least `share` per cent of the values do not exceed; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return nan
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * share // 100) - 1))]


def table(columns: dict[str, Figures]) -> str:
    """Return a text table with a column for each run and a row for each figure."""
    rows = [[f"{words} p{share}, ms" for words in KINDS.values() for share in SHARES]
            + ["refused", "yields", "tokens per second"]]
    for figures in columns.values():
        times = [milliseconds(figures.percentile(kind, share)) for kind in KINDS for share in SHARES]
        rows.append([*times, f"{figures.num_refused}", f"{figures.num_yields}", f"{figures.tokens_per_second:.1f}"])
    return aligned([["", *columns], *map(list, zip(*rows, strict=True))])


def milliseconds(seconds: float) -> str:
    return "-" if isnan(seconds) else f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f}"


def aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                               for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
                     for row in rows)
