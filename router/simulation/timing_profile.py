"""Speed of the shards and the router in a recording, for simulations: step costs, noise, time between steps. Noise, the
actual over the predicted seconds of a step, is replayed in its recorded order, since a machine is slow for a while, and
for similar steps, since a delay that doubles a short step is negligible for a long one."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from math import log2
from statistics import median

from router.scheduler.cost_model import CostModel, CostTerms, StepLoad

# recorded steps that a kind needs; steps of a rarer kind get the noise of the most similar such kind
MIN_STEPS_PER_KIND = 16

StepKind = tuple[bool, int]  # whether a step computes prompt tokens, and the rounded log2 of its predicted seconds


@dataclass(slots=True)
class TimingProfile:
    """Speed of recorded shards: cost coefficients, noise by kind of step, and the overhead between steps."""

    coefficients: CostTerms
    noise: dict[StepKind, list[float]] = field(default_factory=dict)
    # Seconds beyond those of the step: from plan to answer with no other step in flight, and from answer to answer of
    # steps that were sent ahead.
    idle_overheads: list[float] = field(default_factory=list)
    pipelined_overheads: list[float] = field(default_factory=list)


def timing_bucket(load: StepLoad, predicted_seconds: float) -> StepKind:
    return load.chunk_tokens > 0, round(log2(max(predicted_seconds, 1e-9)))


class TimingReplay:
    """Replay of a profile: all values come in their recorded order, from an index that the seed chooses."""

    def __init__(self, timing_profile: TimingProfile, seed: int) -> None:
        self._costs = CostModel(timing_profile.coefficients)
        start_fraction = random.Random(seed).random()  # noqa: S311 - must be reproducible, not secret
        self._noise = {kind: cycle_from(figures, start_fraction) for kind, figures in timing_profile.noise.items()}
        self._common_kinds = ([kind for kind, figures in timing_profile.noise.items()
                               if len(figures) >= MIN_STEPS_PER_KIND] or list(timing_profile.noise))
        self._most_similar_kinds: dict[StepKind, StepKind] = {}
        self._idle_overheads = cycle_from(timing_profile.idle_overheads or [0.0], start_fraction)
        self._pipelined_overheads = cycle_from(timing_profile.pipelined_overheads or [0.0], start_fraction)

    def step_seconds(self, load: StepLoad) -> float:
        predicted = self._costs.predict(load)
        if not self._noise:
            return predicted
        kind = timing_bucket(load, predicted)
        similar = self._most_similar_kinds.get(kind)
        if similar is None:
            similar = self._most_similar_kinds[kind] = min(self._common_kinds,
                                                           key=lambda one: (abs(one[1] - kind[1]), one[0] != kind[0]))
        return predicted * next(self._noise[similar])

    def answer_time(self, planned_at: float, previous_answered_at: float | None, seconds: float) -> float:
        """Return when a step is answered; `previous_answered_at` is when the step in flight before it is, if any."""
        idle_answer_time = planned_at + next(self._idle_overheads) + seconds
        return (idle_answer_time if previous_answered_at is None
                else max(idle_answer_time, previous_answered_at + next(self._pipelined_overheads) + seconds))


def cycle_from(values: list[float], start_fraction: float) -> Iterator[float]:
    """Yield the values in a cycle without end; `start_fraction` is the fraction of the list at which to begin."""
    start = int(start_fraction * len(values))
    return cycle(values[start:] + values[:start])


class TimingCollector:
    """Collector of the times of plans and answers, from which a `TimingProfile` is made."""

    def __init__(self) -> None:
        # when it was planned, its load, whether no other step was in flight then
        self._steps_in_flight: deque[tuple[float, StepLoad, bool]] = deque()
        self._measured_steps: list[tuple[StepLoad, float]] = []
        self._idle_overheads: list[float] = []
        # planned, answered before, answered, seconds
        self._pipelined_steps: list[tuple[float, float, float, float]] = []
        self._last_answered_at = 0.0

    def record_plan(self, load: StepLoad, now: float) -> None:
        self._steps_in_flight.append((now, load, not self._steps_in_flight))

    def record_answered_step(self, seconds: float, now: float) -> None:
        if not self._steps_in_flight:
            return  # the step was sent before the recording began
        planned_at, load, was_only_step = self._steps_in_flight.popleft()
        if seconds > 0.0:
            self._measured_steps.append((load, seconds))
            if was_only_step:
                self._idle_overheads.append(now - planned_at - seconds)
            else:
                self._pipelined_steps.append((planned_at, self._last_answered_at, now, seconds))
        self._last_answered_at = now

    def clear_steps_in_flight(self) -> None:
        self._steps_in_flight.clear()

    def make_profile(self, cost_model: CostModel) -> TimingProfile:
        """Return the profile, with the noise of all steps relative to these costs, as learned by the end of the run."""
        noise: dict[StepKind, list[float]] = {}
        for load, seconds in self._measured_steps:
            predicted = cost_model.predict(load)
            noise.setdefault(timing_bucket(load, predicted), []).append(seconds / predicted)
        median_idle_overhead = median(self._idle_overheads) if self._idle_overheads else 0.0
        pipelined_overheads = [now - before - seconds for at, before, now, seconds in self._pipelined_steps
                               if at + median_idle_overhead <= before]
        return TimingProfile(cost_model.coefficients, noise, self._idle_overheads or pipelined_overheads,
                             pipelined_overheads)
