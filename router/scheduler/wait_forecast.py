"""Forecast of a request's wait in the queue, from the requests before it, those that run, and past observations.

The known schedule is simulated: a running sequence ends after its expected number of steps and frees its row of the
batch and its slots of the cache, and then the next one may start. Three things are learned while serving: the part of
`max_new_tokens` that sequences really generate, the duration of steps and the speed of prompts. The error that remains
is learned from the requests that started. Limits of the wait are in admission.py.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from math import exp, log

from router.scheduler.cost_model import SURPRISES, CostModel, Load
from router.scheduler.sequence import Sequence
from router.scheduler.settings import Policy
from router.scheduler.waiting_queue import Demand

MEMORY = 0.03  # weight of the newest value in an average
MOST_WRONG = 1.5  # logarithm of the largest correction
DOUBT = 0.25  # spread of errors before any was seen
UNLUCKY = 3.0  # multiple of the spread, which is a mean absolute deviation: one error in a hundred is larger
PLAYED = 128  # waiting sequences that are simulated
USUAL_LENGTH = 256  # tokens of a sequence, before any was seen
BRIEF = 0.02  # seconds; nothing is learned from shorter waits


class Forecast:
    """Forecast of waits. `plain` is the raw one; `corrected` and `at_worst` apply the errors learned so far to it."""

    def __init__(self, policy: Policy, num_places: int, costs: CostModel) -> None:
        """Predict step times by `costs` until steps were seen; the cache has `num_places` slots."""
        self._max_batch_size = rows = policy.max_batch_size
        self._num_places = num_places * (1.0 - policy.reserve)
        self._generated = self._allowed = 1.0  # tokens of ended sequences; equal at first: the full length is assumed
        self._step_seconds = costs.predict(Load(rows, 0, min(rows * USUAL_LENGTH, num_places)))
        self._prompt_seconds = costs.predict(Load(0, 1, 0)) - costs.predict(Load())  # for a token of a prompt
        self._latest: list[tuple[float, float]] = []  # both averages before each of the latest steps
        self._error = 0.0  # mean logarithm of actual over predicted wait
        self._spread = DOUBT  # mean absolute deviation from it

    def at_worst(self, plain: float) -> float:
        """Return the wait if the raw forecast errs unluckily (see UNLUCKY) and the request just misses a step.

        About one wait in a hundred is longer. A raw forecast of 0 stays 0.
        """
        return plain * exp(self._error + UNLUCKY * self._spread) + self._step_seconds if plain else 0.0

    def corrected(self, plain: float) -> float:
        """Return the raw forecast, corrected by the mean error."""
        return plain * exp(self._error)

    def plain(self, waiting: Iterable[Sequence], demand: Demand, running: Iterable[Sequence]) -> float:
        """Return the raw forecast: seconds until all waiting sequences have started and one more could.

        `demand` is the total of the waiting sequences.
        """
        prompts = [(sequence.length, self._left(sequence)) for sequence in islice(waiting, PLAYED)]
        steps = self._steps(prompts, [(self._left(sequence), sequence.length) for sequence in running])
        alike = max(demand.count, 1) / max(len(prompts), 1)  # sequences beyond PLAYED are assumed to be like the first
        return max(steps * alike * self._step_seconds, demand.tokens * self._prompt_seconds)

    def _left(self, sequence: Sequence) -> float:
        """Return the tokens that the sequence is expected to generate from now on, at least 1."""
        allowed, done = sequence.request.max_new_tokens, len(sequence.generated)
        return max(allowed * self._generated / self._allowed - done, 1.0)

    def _steps(self, prompts: list[tuple[int, float]], ends: list[tuple[float, int]]) -> float:
        """Return the number of steps until all waiting sequences have started and one more could.

        `prompts` are (length, tokens to generate) of the waiting sequences in order, `ends` (last step, slots) of the
        running ones. Slots are as of step 0: each sequence takes one more per step.
        """
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
        """Scale the times of steps and prompts by `factor`.

        The factor applies to the averages before the streak of steps that revealed the change, since the present ones
        have partly followed that streak.
        """
        if factor == 1.0:
            return
        step_seconds, prompt_seconds = self._latest[0] if self._latest else (self._step_seconds, self._prompt_seconds)
        self._step_seconds, self._prompt_seconds = factor * step_seconds, factor * prompt_seconds
        self._latest = []

    def step_took(self, seconds: float, chunk_tokens: int, *, crowded: bool) -> None:
        """Learn from the seconds between two answers.

        The speed of prompts is learned from crowded steps only, whose budget had no tokens for a new sequence.
        """
        self._latest = [*self._latest[2 - SURPRISES:], (self._step_seconds, self._prompt_seconds)]
        self._step_seconds += MEMORY * (seconds - self._step_seconds)
        if crowded and chunk_tokens:
            self._prompt_seconds += MEMORY * (seconds / chunk_tokens - self._prompt_seconds)

    def ended(self, generated: int, allowed: int) -> None:
        self._generated += generated - MEMORY * self._generated
        self._allowed += allowed - MEMORY * self._allowed

    def started(self, plain: float, actual: float) -> None:
        """Learn from the raw forecast at arrival and the actual wait.

        The corrected forecast is not used: learning from it would compound the corrections.
        """
        if plain > BRIEF and actual > BRIEF:
            error = min(max(log(actual / plain), -MOST_WRONG), MOST_WRONG)
            self._error += MEMORY * (error - self._error)
            self._spread += MEMORY * (abs(error - self._error) - self._spread)
