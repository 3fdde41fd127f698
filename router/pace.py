"""How fast shards and router were in a recording, to be assumed of others: what steps cost, how much luck they had, and
what passes between steps.

Luck, actual over predicted seconds, is played again in the order in which it was: a machine that is slow for a while is
slow in a simulation for as long. Knows nothing of requests.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from router.costs import CostModel, Load, Terms


@dataclass(slots=True)
class Pace:
    coefficients: Terms
    decode_luck: list[float] = field(default_factory=list)
    prompt_luck: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)  # from plan to answer beyond the step, with nothing else under way
    between: list[float] = field(default_factory=list)  # from answer to answer beyond the step, sent ahead


class Luck:
    """A pace being run: every figure comes in its order, from a place that the seed chooses."""

    def __init__(self, pace: Pace, seed: int) -> None:
        self._costs = CostModel(pace.coefficients)
        chosen = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self._decode = played(pace.decode_luck or pace.prompt_luck or [1.0], chosen)
        self._prompt = played(pace.prompt_luck or pace.decode_luck or [1.0], chosen)
        self._alone = played(pace.alone or [0.0], chosen)
        self._between = played(pace.between or [0.0], chosen)

    def seconds(self, load: Load) -> float:
        return self._costs.predict(load) * next(self._prompt if load.chunk_tokens else self._decode)

    def answered(self, planned: float, before: float | None, seconds: float) -> float:
        """When the answer is there to a step that was planned then, behind another that is answered at `before`."""
        alone = planned + next(self._alone) + seconds
        return alone if before is None else max(alone, before + next(self._between) + seconds)


def played(figures: list[float], chosen: random.Random) -> Iterator[float]:
    place = chosen.randrange(len(figures))
    while True:
        yield figures[place]
        place = (place + 1) % len(figures)


@dataclass(frozen=True, slots=True)
class Sent:
    at: float
    load: Load
    is_alone: bool


class Timing:
    """Learns a pace from plans and answers as they happened."""

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
            return  # it was sent before anybody looked
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
        """By what the costs were at the end."""
        lucks: dict[bool, list[float]] = {False: [], True: []}
        for load, seconds in self._steps:
            lucks[load.chunk_tokens > 0].append(seconds / costs.predict(load))
        usual = median(self._alone) if self._alone else 0.0
        between = [now - before - seconds for at, before, now, seconds in self._behind if at + usual <= before]
        return Pace(costs.coefficients, lucks[False], lucks[True], self._alone or between, between)
