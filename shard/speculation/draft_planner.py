"""The draft planner: how many guessed tokens of which sequences a step verifies.

A row more costs a step some time, which warm-up has measured, and yields a token as often as guesses of that sequence
came true of late. Rows are added as long as they raise the expected tokens per second of the step. So a step that reads
its weights for few rows verifies many guesses, one with many rows few, and a sequence whose guesses fail none. Guesses
are compared with the tokens that come even where no step verifies them, so nothing needs to be tried.

All ranks plan alike: a plan follows from tokens and from times that all ranks have in common.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

from shard.speculation.prompt_lookup import PromptLookup
from shard.state.sequence import Sequence
from shard.state.step import Step

FIRST_HIT_RATE = 0.3
HIT_RATE_STEP = 0.2  # weight of the latest guess in the moving average
# Share of a step's time that a verified guess must gain beyond what its row costs: building a step of rows of one
# sequence takes longer, and measured times vary.
MIN_GAIN = 0.03


@dataclass(slots=True)
class DraftState:
    """What the planner keeps with a sequence."""

    lookup: PromptLookup = field(default_factory=PromptLookup)
    hit_rate: float = FIRST_HIT_RATE  # moving average: how often a guess came true whose predecessors had
    proposal: list[int] = field(default_factory=list)  # guesses for the step that is planned


class StepSeconds:
    """Seconds of a step by its number of rows, interpolated between measured numbers."""

    def __init__(self, measured: Iterable[tuple[int, float]]) -> None:
        """`measured`: numbers of rows and seconds. More rows never count as faster."""
        points: dict[int, float] = {}
        for num_rows, seconds in measured:
            points[num_rows] = min(seconds, points.get(num_rows, seconds))
        self._rows = sorted(points)
        self._seconds: list[float] = []
        for num_rows in self._rows:
            self._seconds.append(max([points[num_rows], *self._seconds[-1:]]))
        self._slopes = [(after - before) / (right - left) for (left, right), (before, after)
                        in zip(pairwise(self._rows), pairwise(self._seconds), strict=True)]

    def compute(self, num_rows: int) -> float:
        """Return the seconds; beyond the largest measured step they grow as between the last two."""
        if not self._slopes or num_rows <= self._rows[0]:
            return self._seconds[0] if self._seconds else 0.0
        index = min(bisect_left(self._rows, num_rows) - 1, len(self._slopes) - 1)
        return self._seconds[index] + self._slopes[index] * (num_rows - self._rows[index])


class DraftPlanner:
    """Planner for sequences of one model, with at most `max_draft_tokens` guesses per sequence and step."""

    def __init__(self, max_draft_tokens: int, max_positions: int, step_seconds: StepSeconds) -> None:
        self._step_seconds = step_seconds
        self._max_draft_tokens = max_draft_tokens
        self._max_positions = max_positions

    def plan(self, step: Step) -> None:
        """Add to the step the guesses that it verifies."""
        # (minus the probability that the next guess of a sequence counts, index of the sequence, number of the guess)
        candidates: list[tuple[float, int, int]] = []
        for index, sequence in enumerate(step.decodes):
            state = sequence.draft_state = sequence.draft_state or DraftState()
            # Each guess needs a position for itself, and the token behind the last one needs none.
            max_tokens = min(self._max_draft_tokens, self._max_positions - len(sequence.tokens))
            state.proposal = state.lookup.propose(sequence.tokens, max_tokens) if max_tokens > 0 else []
            if state.proposal:
                candidates.append((-state.hit_rate, index, 1))
        if candidates:
            num_rows = len(step.decodes) + sum(chunk.length for chunk in step.chunks)
            step.drafts = self._choose(step.decodes, candidates, num_rows)

    def _choose(self, decodes: list[Sequence], candidates: list[tuple[float, int, int]],
                num_rows: int) -> dict[int, list[int]]:
        heapify(candidates)
        # A prompt's token is worth as much as one that is generated.
        expected_tokens, seconds = float(num_rows), self._step_seconds.compute(num_rows)
        drafts: dict[int, list[int]] = {}
        while candidates:
            negative_probability, index, number = candidates[0]
            seconds_with_row = self._step_seconds.compute(num_rows + 1)
            if -negative_probability / expected_tokens < (seconds_with_row / seconds - 1 if seconds else 0) + MIN_GAIN:
                break  # the best candidate does not pay
            num_rows, seconds = num_rows + 1, seconds_with_row
            expected_tokens -= negative_probability
            state = decodes[index].draft_state
            drafts[decodes[index].id] = state.proposal[:number]
            if number < len(state.proposal):
                heapreplace(candidates, (negative_probability * state.hit_rate, index, number + 1))
            else:
                heappop(candidates)
        return drafts

    def record(self, step: Step, new_tokens: Mapping[int, list[int]]) -> None:
        """Compare guesses with the tokens of the step; of a sequence whose guesses it has not verified the first one.
        """
        for sequence in step.decodes:
            state = sequence.draft_state
            guesses = step.drafts.get(sequence.id) or state.proposal[:1]
            for guess, token in zip(guesses, new_tokens.get(sequence.id, ()), strict=False):
                state.hit_rate += ((guess == token) - state.hit_rate) * HIT_RATE_STEP
