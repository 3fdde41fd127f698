"""How long a request will wait before it starts, from what waits before it, what runs, and what was seen to happen.

What is known is played through: who runs ends after so many steps and frees its place in the batch and its places in
the cache, and then the next may start. How much of what they may generate requests really do, how long steps take and
how fast prompts run is learned while serving; what is still wrong with a forecast is learned from those that started.
Knows nothing of limits: see admission.py.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from math import exp, log

from router.costs import SURPRISES, CostModel, Load
from router.policy import Policy
from router.queue import Demand
from router.sequence import Sequence

MEMORY = 0.03  # weight of what was seen last
MOST_WRONG = 1.5  # logarithm of the largest correction
DOUBT = 0.25  # spread of errors before any was seen
UNLUCKY = 3.0  # spreads, as they are means of what errors are off: one in a hundred is further off
PLAYED = 128  # of those who wait are played through
USUAL_LENGTH = 256  # tokens of a sequence, before any was seen
BRIEF = 0.02  # seconds of waiting that say nothing about a forecast


class Forecast:
    def __init__(self, policy: Policy, num_places: int, costs: CostModel) -> None:
        """`costs` tells what steps take until some were seen."""
        self._max_batch_size = rows = policy.max_batch_size
        self._num_places = num_places * (1.0 - policy.reserve)
        self._generated = self._allowed = 1.0  # tokens, of those who ended; at first they do all that they may
        self._step_seconds = costs.predict(Load(rows, 0, min(rows * USUAL_LENGTH, num_places)))
        self._prompt_seconds = costs.predict(Load(0, 1, 0)) - costs.predict(Load())  # for a token of a prompt
        self._latest: list[tuple[float, float]] = []  # both, before each of the last steps
        self._error = 0.0  # mean logarithm of actual over predicted wait
        self._spread = DOUBT  # how far it is off from that, on average

    def at_worst(self, plain: float) -> float:
        """What it may become when it is unlucky, and just misses a step."""
        return plain * exp(self._error + UNLUCKY * self._spread) + self._step_seconds if plain else 0.0

    def corrected(self, plain: float) -> float:
        """By what was learned from errors."""
        return plain * exp(self._error)

    def plain(self, waiting: Iterable[Sequence], demand: Demand, running: Iterable[Sequence]) -> float:
        """Seconds until all who wait have started, and one more would. `demand` is that of all who wait."""
        prompts = [(sequence.length, self._left(sequence)) for sequence in islice(waiting, PLAYED)]
        steps = self._steps(prompts, [(self._left(sequence), sequence.length) for sequence in running])
        alike = max(demand.count, 1) / max(len(prompts), 1)  # those further behind are like those in front
        return max(steps * alike * self._step_seconds, demand.tokens * self._prompt_seconds)

    def _left(self, sequence: Sequence) -> float:
        """Tokens that it will still generate."""
        allowed, done = sequence.request.max_new_tokens, len(sequence.generated)
        return max(allowed * self._generated / self._allowed - done, 1.0)

    def _steps(self, prompts: list[tuple[int, float]], ends: list[tuple[float, int]]) -> float:
        """`prompts` are (length, tokens to come) of those who wait, in their order; `ends` are (step of the end, places
        held less the steps until then) of those who run."""
        heapify(ends)
        now, held = 0.0, sum(places for _, places in ends)
        for length, left in [*prompts, (0, 0.0)]:
            while ends and (len(ends) >= self._max_batch_size
                            or held + len(ends) * now + length > self._num_places):
                now, places = heappop(ends)
                held -= places
            heappush(ends, (now + left, length - int(now)))
            held += length - int(now)
        return now

    # -- learning

    def new_pace(self, factor: float) -> None:
        """Scale the times of steps and prompts by `factor`, which is relative to before the streak of steps that showed
        it: the averages have followed those steps half-way already."""
        if factor == 1.0:
            return
        step_seconds, prompt_seconds = self._latest[0] if self._latest else (self._step_seconds, self._prompt_seconds)
        self._step_seconds, self._prompt_seconds = factor * step_seconds, factor * prompt_seconds
        self._latest = []

    def step_took(self, seconds: float, chunk_tokens: int, *, crowded: bool) -> None:
        """From the answer before to this one. How fast prompts run shows only where a step turns some away."""
        self._latest = [*self._latest[2 - SURPRISES:], (self._step_seconds, self._prompt_seconds)]
        self._step_seconds += MEMORY * (seconds - self._step_seconds)
        if crowded and chunk_tokens:
            self._prompt_seconds += MEMORY * (seconds / chunk_tokens - self._prompt_seconds)

    def ended(self, generated: int, allowed: int) -> None:
        self._generated += generated - MEMORY * self._generated
        self._allowed += allowed - MEMORY * self._allowed

    def started(self, plain: float, actual: float) -> None:
        """`plain` as it was when it came: to learn from what was told would be to correct corrections."""
        if plain > BRIEF and actual > BRIEF:
            error = min(max(log(actual / plain), -MOST_WRONG), MOST_WRONG)
            self._error += MEMORY * (error - self._error)
            self._spread += MEMORY * (abs(error - self._error) - self._spread)
