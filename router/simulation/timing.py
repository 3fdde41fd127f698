"""Speed of the shards and the router in a recording, to be used in simulations: step costs, noise, time between steps.

Noise (`luck`), the actual over the predicted seconds of a step, is replayed in its recorded order: a machine that is
slow for a while is slow in a simulation for as long. A step gets the noise of similar steps, since a delay that doubles
a short step is negligible for a long one.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log2
from statistics import median

from router.scheduler.cost_model import CostModel, Load, Terms

ENOUGH = 16  # recorded steps that a kind needs; steps of a rarer kind get the luck of the most similar such kind

Kind = tuple[bool, int]  # whether a step computes prompt tokens, and the rounded log2 of its predicted seconds


@dataclass(slots=True)
class Pace:
    coefficients: Terms
    luck: dict[Kind, list[float]] = field(default_factory=dict)
    # Seconds beyond those of the step: from plan to answer with no other step in flight, and from answer to answer of
    # steps that were sent ahead.
    alone: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


def kind_of(load: Load, predicted: float) -> Kind:
    return load.chunk_tokens > 0, round(log2(max(predicted, 1e-9)))


class Luck:
    """Replay of a pace: all values come in their recorded order, from an index that the seed chooses."""

    def __init__(self, pace: Pace, seed: int) -> None:
        self._costs = CostModel(pace.coefficients)
        part = random.Random(seed).random()  # noqa: S311 - must be reproducible, not secret
        self._luck = {kind: played(figures, part) for kind, figures in pace.luck.items()}
        self._common = [kind for kind, figures in pace.luck.items() if len(figures) >= ENOUGH] or list(pace.luck)
        self._like: dict[Kind, Kind] = {}
        self._alone = played(pace.alone or [0.0], part)
        self._between = played(pace.between or [0.0], part)

    def seconds(self, load: Load) -> float:
        predicted = self._costs.predict(load)
        return predicted * self._of(kind_of(load, predicted))

    def _of(self, kind: Kind) -> float:
        if not self._luck:
            return 1.0
        like = self._like.get(kind)
        if like is None:
            like = self._like[kind] = min(self._common, key=lambda one: (abs(one[1] - kind[1]), one[0] != kind[0]))
        return next(self._luck[like])

    def answered(self, planned: float, before: float | None, seconds: float) -> float:
        """Return when a step planned at `planned` is answered; `before` is the answer time of the step before it."""
        alone = planned + next(self._alone) + seconds
        return alone if before is None else max(alone, before + next(self._between) + seconds)


def played(figures: list[float], part: float) -> Iterator[float]:
    """Yield the values in a cycle without end; `part` is the fraction of the list at which to begin."""
    place = int(part * len(figures))
    while True:
        yield figures[place]
        place = (place + 1) % len(figures)


@dataclass(frozen=True, slots=True)
class Sent:
    at: float
    load: Load
    is_alone: bool


class Timing:
    """Collector of the times of plans and answers, from which a `Pace` is made."""

    def __init__(self) -> None:
        self._under_way: deque[Sent] = deque()
        self._steps: list[tuple[Load, float]] = []
        self._alone: list[float] = []
        self._behind: list[tuple[float, float, float, float]] = []  # planned, answered before, answered, seconds
        self._last = 0.0

    def planned(self, load: Load, now: float) -> None:
        self._under_way.append(Sent(now, load, not self._under_way))

    def answered(self, seconds: float, now: float) -> None:
        if not self._under_way:
            return  # the step was sent before the recording began
        sent = self._under_way.popleft()
        if seconds > 0.0:
            self._steps.append((sent.load, seconds))
            if sent.is_alone:
                self._alone.append(now - sent.at - seconds)
            else:
                self._behind.append((sent.at, self._last, now, seconds))
        self._last = now

    def lost(self) -> None:
        self._under_way.clear()

    def pace(self, costs: CostModel) -> Pace:
        """Return the pace, with the luck of all steps relative to these costs, as learned by the end of the run."""
        luck: dict[Kind, list[float]] = {}
        for load, seconds in self._steps:
            predicted = costs.predict(load)
            luck.setdefault(kind_of(load, predicted), []).append(seconds / predicted)
        usual = median(self._alone) if self._alone else 0.0
        between = [now - before - seconds for at, before, now, seconds in self._behind if at + usual <= before]
        return Pace(costs.coefficients, luck, self._alone or between, between)
