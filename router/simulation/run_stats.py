"""Latency as clients see it: queue wait, time to first token and inter-token latency, from calls of the scheduler.
Recorded and simulated runs are measured by the same code."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isnan, nan

from router.scheduler.events import RequestAccepted, RequestRejected, SchedulerEvent, TokensGenerated
from router.scheduler.shard_messages import PoolingStep, Prefill, StepPlan

LATENCY_KINDS = {"ttft": "first token", "wait": "waiting", "itl": "between tokens"}
PERCENTILES = (50, 90, 99)
COUNTS = ("num_requests", "num_rejected", "num_preemptions", "num_tokens", "num_prompt_tokens",
          "num_prefix_hit_tokens", "num_adapter_loads")  # of RunStats, which add up


@dataclass(slots=True)
class SequenceTimes:
    """Times of one sequence from which its latencies are measured."""

    arrived_at: float
    is_arrival_known: bool = True  # whether the request arrived during the measurement
    started_at: float | None = None
    last_token_at: float | None = None
    num_tokens: int = 0


@dataclass(slots=True)
class RunStats:
    """Latencies and totals of one run, recorded or simulated."""

    started_at: float = 0.0
    ended_at: float = 0.0
    num_requests: int = 0
    num_rejected: int = 0
    num_preemptions: int = 0
    num_tokens: int = 0
    num_prompt_tokens: int = 0  # of requests that have started
    num_prefix_hit_tokens: int = 0  # those that were found in the prefix cache
    num_adapter_loads: int = 0  # counted where loads are simulated
    latencies: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in LATENCY_KINDS})
    _sequence_times: dict[int, SequenceTimes] = field(default_factory=dict)
    # sequences that have started since the shards were last lost
    _started_sequences: set[int] = field(default_factory=set)

    @classmethod
    def merge(cls, parts: Sequence["RunStats"]) -> "RunStats":
        """Return the figures of several runs at the same time, such as those of replicas."""
        return cls(
            min(stats.started_at for stats in parts), max(stats.ended_at for stats in parts),
            **{name: sum(getattr(stats, name) for stats in parts) for name in COUNTS},
            latencies={kind: [value for stats in parts for value in stats.latencies[kind]] for kind in LATENCY_KINDS})

    def add_unfinished_at_start(self, sequence_id: int) -> None:
        """Add a sequence that was unfinished when the measurement began."""
        self._sequence_times[sequence_id] = SequenceTimes(0.0, is_arrival_known=False)

    def record_submission(self, events: list[SchedulerEvent], now: float, *,
                          is_arrival_known: bool = True) -> int | None:
        """Count a request; return the id of its sequence if it was accepted."""
        self.num_requests += is_arrival_known
        self.num_rejected += isinstance(events[0], RequestRejected)
        if not isinstance(events[0], RequestAccepted):
            return None
        self._sequence_times[events[0].sequence_id] = SequenceTimes(now, is_arrival_known)
        return events[0].sequence_id

    def record_plan(self, plan: StepPlan, now: float) -> None:
        for message in plan.messages:
            if isinstance(message, Prefill | PoolingStep):
                for new_sequence in message.new_sequences:
                    self.num_preemptions += new_sequence.sequence_id in self._started_sequences
                    self._started_sequences.add(new_sequence.sequence_id)
                    times = self._sequence_times[new_sequence.sequence_id]
                    if times.started_at is None and times.is_arrival_known:
                        times.started_at = now
                        num_prompt_tokens = len(new_sequence.request.prompt)
                        self.num_prompt_tokens += num_prompt_tokens
                        self.num_prefix_hit_tokens += min(new_sequence.num_cached_tokens, num_prompt_tokens)
                        self.latencies["wait"].append(now - times.arrived_at)

    def record_events(self, events: list[SchedulerEvent], now: float) -> None:
        self.ended_at = max(self.ended_at, now)
        for event in events:
            if isinstance(event, TokensGenerated):
                for sequence_id, count in event.token_counts.items():
                    times = self._sequence_times[sequence_id]
                    if times.last_token_at is not None:
                        self.latencies["itl"].append(now - times.last_token_at)
                    elif times.is_arrival_known:
                        self.latencies["ttft"].append(now - times.arrived_at)
                    times.last_token_at = now
                    times.num_tokens += count
                    self.num_tokens += count

    def reset_preemption_tracking(self) -> None:
        """Start counting preemptions afresh: a sequence that starts again after a loss was not preempted."""
        self._started_sequences.clear()

    def num_tokens_of(self, sequence_id: int) -> int:
        return self._sequence_times[sequence_id].num_tokens

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / (self.ended_at - self.started_at) if self.ended_at > self.started_at else 0.0

    @property
    def prefix_hit_share(self) -> float:
        """Share of the prompts' tokens that were found in the prefix cache; NaN without prompts."""
        return self.num_prefix_hit_tokens / self.num_prompt_tokens if self.num_prompt_tokens else nan

    def percentile(self, latency_kind: str, percent: float) -> float:
        """Return a percentile in seconds; NaN if there were no values."""
        return percentile(self.latencies[latency_kind], percent)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least `percent` per cent of the values do not exceed; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return nan
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * percent // 100) - 1))]


def format_table(stats_by_run: dict[str, RunStats]) -> str:
    """Return a text table with a column for each run and a row for each figure."""
    rows = [[f"{words} p{share}, ms" for words in LATENCY_KINDS.values() for share in PERCENTILES]
            + ["refused", "yields", "tokens per second"]]
    for stats in stats_by_run.values():
        times = [format_seconds_as_ms(stats.percentile(kind, share)) for kind in LATENCY_KINDS for share in PERCENTILES]
        rows.append([*times, f"{stats.num_rejected}", f"{stats.num_preemptions}", f"{stats.tokens_per_second:.1f}"])
    return align_columns([["", *stats_by_run], *map(list, zip(*rows, strict=True))])


def format_seconds_as_ms(seconds: float) -> str:
    return "-" if isnan(seconds) else f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f}"


def align_columns(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                               for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
                     for row in rows)
