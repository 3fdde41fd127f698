"""How long a request will wait before it starts, from what waits before it and what was seen to happen.

Whoever runs holds a place in the batch and blocks in the cache for as long as it generates, and its prompt takes a
share of the steps. What waits needs so much of each; the scarcest tells the time. How much of what they may generate
requests really do, how long steps take and how fast prompts run is learned while serving, and what is still wrong with
a forecast is learned from those that started. Knows nothing of limits: see admission.py.
"""

from math import exp, log

from router.policy import Policy
from router.queue import Demand

MEMORY = 0.02  # weight of what was seen last
MOST_WRONG = 1.5  # logarithm of the largest correction
BRIEF = 0.02  # seconds of waiting that say nothing about a forecast


class Forecast:
    def __init__(self, policy: Policy, num_blocks: int, block_size: int) -> None:
        self._policy = policy
        self._places = num_blocks * block_size * (1.0 - policy.reserve)
        self._generated = self._allowed = 1.0  # tokens, of those who ended; at first they do all that they may
        self._step_seconds = 0.0
        self._prompt_seconds = 0.0  # for a token of a prompt
        self._error = 0.0  # mean logarithm of actual over predicted wait

    def seconds(self, demand: Demand) -> float:
        """Until all of these have started."""
        return exp(self._error) * self._plain(demand)

    def _plain(self, demand: Demand) -> float:
        if not demand.count:
            return 0.0
        steps = demand.new_tokens * self._generated / self._allowed  # of all of them, one after the other
        held = (demand.tokens + steps / 2) / demand.count  # places that one of them holds in the middle of its life
        return max(steps * self._step_seconds / self._policy.max_batch_size,
                   steps * self._step_seconds * held / self._places,
                   demand.tokens * self._prompt_seconds)

    # -- learning

    def step_took(self, seconds: float, chunk_tokens: int, prompts_wait: bool) -> None:
        """From the answer before to this one. How fast prompts run shows only when more of them wait."""
        self._step_seconds += self._weight(self._step_seconds) * (seconds - self._step_seconds)
        if prompts_wait and chunk_tokens:
            each = seconds / chunk_tokens
            self._prompt_seconds += self._weight(self._prompt_seconds) * (each - self._prompt_seconds)

    def ended(self, generated: int, allowed: int) -> None:
        self._generated += generated - MEMORY * self._generated
        self._allowed += allowed - MEMORY * self._allowed

    def started(self, predicted: float, actual: float) -> None:
        """`predicted` as it was told when it came."""
        if predicted > BRIEF and actual > BRIEF:
            self._error += MEMORY * (log(actual / predicted))
            self._error = min(max(self._error, -MOST_WRONG), MOST_WRONG)

    @staticmethod
    def _weight(known: float) -> float:
        return MEMORY if known else 1.0
