"""Search for settings under which a trace reaches latency goals, by simulation.

`python -P -m router.simulation.tune JSON`, an object as `simulate.py` takes it, with a `goal` such as
`ttft=500ms,itl=50ms`: 99th percentiles, unless another is given (`ttft.p50=...`). Settings are varied one after the
other, as long as that improves the result, in at most `ROUNDS` rounds.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from router.recording.file import BadRecording
from router.simulation.report import KINDS, Figures, aligned, milliseconds
from router.simulation.simulate import Case, case_of, flags

UNITS = {"ms": 0.001, "s": 1.0}
GOAL = re.compile(r"(\w+)(?:\.p(\d+(?:\.\d+)?))?=(\d+(?:\.\d+)?)(ms|s)")
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "max_batch_size": (8, 16, 32, 64, 128, 256),
    "max_batch_prefill_tokens": (512, 1024, 2048, 4096, 8192),
    "max_decode_stall_ms": (10.0, 25.0, 50.0, 100.0, 200.0),
    "prefill_policy": ("mixed", "pause"),
}
ROUNDS, SHOWN = 2, 5
WORSE = 10.0  # added to the score of settings under which more requests are rejected than under the unchanged ones


@dataclass(frozen=True, slots=True)
class Goal:
    kind: str
    share: float
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.kind}.p{self.share:g}"

    @classmethod
    def all_of(cls, text: str) -> list["Goal"]:
        return [cls._of(part.strip()) for part in text.split(",")]

    @classmethod
    def _of(cls, text: str) -> "Goal":
        match = GOAL.fullmatch(text)
        if match is None or match[1] not in KINDS:
            raise ValueError(f"--goal {text}: wanted is one of {', '.join(KINDS)}, as in ttft=500ms or itl.p50=20ms")
        return cls(match[1], float(match[2] or 99), float(match[3]) * UNITS[match[4]])

    def reached(self, figures: Figures) -> float:
        """Return the simulated value over the goal; above 1 the goal is missed."""
        return figures.percentile(self.kind, self.share) / self.seconds


@dataclass(frozen=True, slots=True)
class Attempt:
    settings: Mapping[str, Any]
    figures: Figures
    score: float  # value over goal, for the goal that is missed most: lower is better, at most 1 reaches all goals


class Tuning:
    def __init__(self, case: Case, goals: list[Goal]) -> None:
        self._case = case
        self._goals = goals
        self._attempts: dict[str, Attempt] = {}
        self.first = self._try({})

    def run(self) -> list[Attempt]:
        """Return all attempts, the best first."""
        best = self.first
        for _ in range(ROUNDS):
            before = best
            for name, values in CHOICES.items():
                best = min([best, *self._turned(best, name, values)], key=lambda attempt: attempt.score)
            if best is before:
                break
        return sorted(self._attempts.values(), key=lambda attempt: (attempt.score, len(attempt.settings)))

    def _turned(self, best: Attempt, name: str, values: tuple[Any, ...]) -> Iterator[Attempt]:
        for value in values:
            if value != getattr(self._case.config, name):
                yield self._try({**best.settings, name: value})

    def _try(self, settings: Mapping[str, Any]) -> Attempt:
        key = flags(dict(sorted(settings.items())))
        if key not in self._attempts:
            figures = self._case.under(settings)
            self._attempts[key] = Attempt(settings, figures, self._score(figures))
        return self._attempts[key]

    def _score(self, figures: Figures) -> float:
        refused = figures.num_refused > (self.first.figures.num_refused if self._attempts else figures.num_refused)
        return max(goal.reached(figures) for goal in self._goals) + WORSE * refused


def report(goals: list[Goal], attempts: list[Attempt]) -> str:
    rows = [["", *(f"{goal.name}, ms" for goal in goals), "refused", "tokens per second"]]
    for attempt in attempts[:SHOWN]:
        figures = attempt.figures
        times = [milliseconds(figures.percentile(goal.kind, goal.share)) for goal in goals]
        rows.append([flags(attempt.settings) or "as it is", *times, f"{figures.num_refused}",
                     f"{figures.tokens_per_second:.1f}"])
    best = attempts[0]
    use = flags(best.settings)
    if best.score > 1.0:
        last = "no setting that was tried reaches the goal; the nearest: " + (use or "what there is")
    else:
        last = f"use: {use}" if use else "the goal is reached as it is"
    return f"{len(attempts)} settings tried, the best:\n{aligned(rows)}\n{last}"


def main() -> None:
    told = json.loads(sys.argv[1])
    try:
        goals, case = Goal.all_of(told["goal"]), case_of(told)
        if not case.trace.arrivals:
            raise BadRecording("the trace has no requests")
        sys.stdout.write(report(goals, Tuning(case, goals).run()) + "\n")
    except ValueError as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
