"""Rates of a watched engine over the last seconds: tokens and requests per second, latencies, the size of the batch."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.monitor.observed_steps import DECODE_ROW, ObservedStep, to_milliseconds
from router.telemetry.instruments import Histogram
from router.telemetry.server_metrics import ServerMetrics

WINDOW_SECONDS = 10.0
SHOWN_PERCENTILES = (50, 99)


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures that one step adds to the rates."""

    answered_at: float
    wall_seconds: float
    num_rows: int
    num_tokens: int
    num_prompt_tokens: int
    num_finished: int
    gaps: Mapping[float, int]  # seconds between two tokens of a sequence, and how many sequences had them
    first_token_seconds: Sequence[float]


class RateWindow:
    """Figures of the steps of the last WINDOW_SECONDS, or since `started_at` if that is later."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._steps: deque[StepFigures] = deque()

    def add_step(self, step: ObservedStep, num_tokens: int, gaps: Mapping[float, int],
                 first_token_seconds: Sequence[float]) -> None:
        num_prompt_tokens = sum([tokens for _, _, tokens, kind in step.rows if kind != DECODE_ROW])
        self._steps.append(StepFigures(step.answered_at, step.wall_seconds, len(step.rows), num_tokens,
                                       num_prompt_tokens, len(step.finished), gaps, first_token_seconds))

    def describe(self, now: float) -> dict[str, Any]:
        """Return the JSON of the rates."""
        begin = max(self._started_at, now - WINDOW_SECONDS)
        while self._steps and self._steps[0].answered_at < begin:
            self._steps.popleft()
        seconds, steps = now - begin, [step for step in self._steps if step.num_rows]
        gaps, first_tokens = Counter[float](), Counter[float]()
        for step in steps:
            gaps.update(step.gaps)
            first_tokens.update(step.first_token_seconds)

        def per_second(total: int) -> float | None:
            return round(total / seconds, 2) if seconds > 0 else None

        return {
            "window_seconds": round(seconds, 1),
            "tokens_per_second": per_second(sum(step.num_tokens for step in steps)),
            "prompt_tokens_per_second": per_second(sum(step.num_prompt_tokens for step in steps)),
            "requests_per_second": per_second(sum(step.num_finished for step in steps)),
            "first_token_ms": describe_percentiles(first_tokens), "gap_ms": describe_percentiles(gaps),
            "batch_size": round(sum(step.num_rows for step in steps) / len(steps), 2) if steps else None,
            "step_ms": to_milliseconds(sum(step.wall_seconds for step in steps) / len(steps)) if steps else None}


def describe_percentiles(counts: Mapping[float, int]) -> dict[str, float | None]:
    """Return the shown percentiles, in milliseconds, of values in seconds that occur so many times."""
    ordered, total = sorted(counts.items()), sum(counts.values())
    described: dict[str, float | None] = {}
    for percent in SHOWN_PERCENTILES:
        wanted, seen, found = -(-total * percent // 100), 0, None
        for value, count in ordered:
            seen += count
            if seen >= wanted:
                found = to_milliseconds(value)
                break
        described[f"p{percent}"] = found
    return described


def describe_rates_since_start(metrics: ServerMetrics, now: float) -> dict[str, Any]:
    """Return the rates as metrics count them, for an engine that nobody watches. `now` is Unix time. Percentiles are
    the bounds of the metrics' buckets."""
    seconds, steps, requests = now - metrics.started_at, metrics.steps, metrics.requests

    def per_second(total: int) -> float:
        return round(total / max(seconds, 1e-3), 2)

    def percentiles(histogram: Histogram) -> dict[str, float | None]:
        bounds = {percent: histogram.estimate_quantile(percent / 100) for percent in SHOWN_PERCENTILES}
        return {f"p{percent}": None if bound is None else to_milliseconds(bound) for percent, bound in bounds.items()}

    num_steps = steps.num_answered
    return {
        "window_seconds": round(seconds, 1), "tokens_per_second": per_second(steps.generated_tokens.value),
        "prompt_tokens_per_second": per_second(steps.prompt_tokens.value),
        "requests_per_second": per_second(requests.total_seconds.count),
        "first_token_ms": percentiles(requests.time_to_first_token),
        "gap_ms": percentiles(requests.inter_token_latency.histogram), "batch_size": None,
        "step_ms": to_milliseconds(steps.total_seconds / num_steps) if num_steps else None}
