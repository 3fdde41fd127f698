"""Rates of a watched engine over the last seconds: tokens and requests per second, latencies, the size of the batch."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from router.monitor.observed_steps import DECODE_ROW, DECODE_STEP, ObservedStep, to_milliseconds
from router.telemetry.instruments import Histogram
from router.telemetry.server_metrics import ServerMetrics

WINDOW_SECONDS = 10.0
SLOT_SECONDS = 0.5
GAP_DIGITS = 5  # gaps are rounded to hundredths of a millisecond, so that many are the same
SHOWN_PERCENTILES = (50, 99)


@dataclass(slots=True)
class RateSlot:
    """Sums over the steps that were answered in SLOT_SECONDS."""

    number: int  # of slots since the window was made
    num_steps: int = 0
    wall_seconds: float = 0.0
    num_rows: int = 0
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_finished: int = 0
    # How many sequences had so many seconds until their first token, and between two tokens.
    first_token_seconds: Counter[float] = field(default_factory=Counter)
    gaps: Counter[float] = field(default_factory=Counter)


class RateWindow:
    """Sums over the steps of the last WINDOW_SECONDS, or since `started_at` if that is later. Slots make a description
    cheap however many steps there are; it may reach back by one slot more."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._slots: deque[RateSlot] = deque()

    def add_step(self, step: ObservedStep, num_tokens: int, gaps: Mapping[float, int],
                 first_token_seconds: Iterable[float]) -> None:
        """Add a step, answered no earlier than those before it."""
        if not step.rows:
            return
        number = int((step.answered_at - self._started_at) / SLOT_SECONDS)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(RateSlot(number))
        slot = self._slots[-1]
        slot.num_steps += 1
        slot.wall_seconds += step.wall_seconds
        slot.num_rows += len(step.rows)
        slot.num_tokens += num_tokens
        slot.num_finished += len(step.finished)
        if step.kind != DECODE_STEP:
            slot.num_prompt_tokens += sum([tokens for _, _, tokens, kind in step.rows if kind != DECODE_ROW])
        for seconds, count in gaps.items():
            slot.gaps[round(seconds, GAP_DIGITS)] += count
        slot.first_token_seconds.update(first_token_seconds)

    def describe(self, now: float) -> dict[str, Any]:
        """Return the JSON of the rates."""
        first_number = max(int((now - self._started_at - WINDOW_SECONDS) / SLOT_SECONDS), 0)
        while self._slots and self._slots[0].number < first_number:
            self._slots.popleft()
        seconds, slots = now - self._started_at - first_number * SLOT_SECONDS, self._slots
        gaps, first_tokens = Counter[float](), Counter[float]()
        for slot in slots:
            gaps.update(slot.gaps)
            first_tokens.update(slot.first_token_seconds)
        num_steps = sum(slot.num_steps for slot in slots)

        def per_second(total: int) -> float | None:
            return round(total / seconds, 2) if seconds > 0 else None

        return {
            "window_seconds": round(seconds, 1),
            "tokens_per_second": per_second(sum(slot.num_tokens for slot in slots)),
            "prompt_tokens_per_second": per_second(sum(slot.num_prompt_tokens for slot in slots)),
            "requests_per_second": per_second(sum(slot.num_finished for slot in slots)),
            "first_token_ms": describe_percentiles(first_tokens), "gap_ms": describe_percentiles(gaps),
            "batch_size": round(sum(slot.num_rows for slot in slots) / num_steps, 2) if num_steps else None,
            "step_ms": to_milliseconds(sum(slot.wall_seconds for slot in slots) / num_steps) if num_steps else None}


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
