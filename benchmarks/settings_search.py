"""Search for settings under which a trace reaches latency goals, by simulation.

`python -P -m benchmarks.settings_search JSON`, an object as `router/simulation/simulate.py` takes it, with a `goal`
such as `ttft=500ms,itl=50ms`: 99th percentiles, unless another is given (`ttft.p50=...`). Settings are varied one after
the other, as long as that improves the result, in at most `MAX_ROUNDS` rounds.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from router.recording.recording_file import BadRecording
from router.simulation.run_stats import LATENCY_KINDS, RunStats, align_columns, format_seconds_as_ms
from router.simulation.simulate import SimulationCase, format_flags, make_simulation_case

SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0}
GOAL_PATTERN = re.compile(r"(\w+)(?:\.p(\d+(?:\.\d+)?))?=(\d+(?:\.\d+)?)(ms|s)")
CANDIDATE_VALUES: Mapping[str, tuple[Any, ...]] = {
    "max_batch_size": (8, 16, 32, 64, 128, 256),
    "max_batch_prefill_tokens": (512, 1024, 2048, 4096, 8192),
    "max_decode_stall_ms": (10.0, 25.0, 50.0, 100.0, 200.0),
    "prefill_policy": ("mixed", "pause"),
}
MAX_ROUNDS, NUM_SHOWN_ATTEMPTS = 2, 5
# added to the score of settings under which more requests are rejected than under the unchanged ones
REJECTION_PENALTY = 10.0


@dataclass(frozen=True, slots=True)
class PercentileGoal:
    """Upper bound for a percentile of a latency."""

    latency_kind: str
    percent: float
    max_seconds: float

    @property
    def name(self) -> str:
        return f"{self.latency_kind}.p{self.percent:g}"

    @classmethod
    def parse_all(cls, text: str) -> list["PercentileGoal"]:
        return [cls._parse(part.strip()) for part in text.split(",")]

    @classmethod
    def _parse(cls, text: str) -> "PercentileGoal":
        match = GOAL_PATTERN.fullmatch(text)
        if match is None or match[1] not in LATENCY_KINDS:
            raise ValueError(
                f"--goal {text}: wanted is one of {', '.join(LATENCY_KINDS)}, as in ttft=500ms or itl.p50=20ms")
        return cls(match[1], float(match[2] or 99), float(match[3]) * SECONDS_PER_UNIT[match[4]])

    def ratio_to_goal(self, stats: RunStats) -> float:
        """Return the simulated value over the goal; above 1 the goal is missed."""
        return stats.percentile(self.latency_kind, self.percent) / self.max_seconds


@dataclass(frozen=True, slots=True)
class TuningAttempt:
    """Settings that were simulated, with their result and score."""

    settings: Mapping[str, Any]
    stats: RunStats
    score: float  # value over goal, for the goal that is missed most: lower is better, at most 1 reaches all goals


class SettingsSearch:
    """Coordinate search over CANDIDATE_VALUES for the settings with the lowest score."""

    def __init__(self, case: SimulationCase, goals: list[PercentileGoal]) -> None:
        self._case = case
        self._goals = goals
        self._attempts: dict[str, TuningAttempt] = {}
        self.baseline = self._simulate_settings({})

    def run(self) -> list[TuningAttempt]:
        """Return all attempts, the best first."""
        best = self.baseline
        for _ in range(MAX_ROUNDS):
            previous_best = best
            for name, values in CANDIDATE_VALUES.items():
                best = min([best, *self._vary_setting(best, name, values)], key=lambda attempt: attempt.score)
            if best is previous_best:
                break
        return sorted(self._attempts.values(), key=lambda attempt: (attempt.score, len(attempt.settings)))

    def _vary_setting(self, best: TuningAttempt, name: str, values: tuple[Any, ...]) -> Iterator[TuningAttempt]:
        for value in values:
            if value != getattr(self._case.config, name):
                yield self._simulate_settings({**best.settings, name: value})

    def _simulate_settings(self, settings: Mapping[str, Any]) -> TuningAttempt:
        key = format_flags(dict(sorted(settings.items())))
        if key not in self._attempts:
            stats = self._case.simulate(settings)
            self._attempts[key] = TuningAttempt(settings, stats, self._score(stats))
        return self._attempts[key]

    def _score(self, stats: RunStats) -> float:
        rejects_more = stats.num_rejected > (self.baseline.stats.num_rejected if self._attempts else stats.num_rejected)
        return max(goal.ratio_to_goal(stats) for goal in self._goals) + REJECTION_PENALTY * rejects_more


def format_report(goals: list[PercentileGoal], attempts: list[TuningAttempt]) -> str:
    rows = [["", *(f"{goal.name}, ms" for goal in goals), "refused", "tokens per second"]]
    for attempt in attempts[:NUM_SHOWN_ATTEMPTS]:
        stats = attempt.stats
        times = [format_seconds_as_ms(stats.percentile(goal.latency_kind, goal.percent)) for goal in goals]
        rows.append([format_flags(attempt.settings) or "as it is", *times, f"{stats.num_rejected}",
                     f"{stats.tokens_per_second:.1f}"])
    best = attempts[0]
    best_flags = format_flags(best.settings)
    if best.score > 1.0:
        recommendation = "no setting that was tried reaches the goal; the nearest: " + (best_flags or "what there is")
    else:
        recommendation = f"use: {best_flags}" if best_flags else "the goal is reached as it is"
    return f"{len(attempts)} settings tried, the best:\n{align_columns(rows)}\n{recommendation}"


def main() -> None:
    arguments = json.loads(sys.argv[1])
    try:
        goals, case = PercentileGoal.parse_all(arguments["goal"]), make_simulation_case(arguments)
        if not case.trace.arrivals:
            raise BadRecording("the trace has no requests")
        sys.stdout.write(format_report(goals, SettingsSearch(case, goals).run()) + "\n")
    except ValueError as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
