"""The draft planner: how many guessed tokens of which sequences a step verifies.

A row more costs a step some time, and yields a token as often as guesses of that sequence came true of late. Rows are
added as long as they raise the expected tokens per second of the step. So a step that reads its weights for few rows
verifies many guesses, one with many rows few, and a sequence whose guesses fail none. Guesses are compared with the
tokens that come even where no step verifies them, so nothing needs to be tried.

Rank 0 plans, since ranks measure different times. `broadcast_drafts` tells the others.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

import torch

from shard.parallel.group import RankGroup
from shard.speculation.prompt_lookup import PromptLookup
from shard.state.sequence import Sequence
from shard.state.step import Step

FIRST_HIT_RATE = 0.3
HIT_RATE_STEP = 0.2  # weight of the latest guess in the moving average
SECONDS_STEP = 0.04  # weight of the latest step in the averages of its time
WARMUP_WEIGHT = 2.0  # of the slope by warm-up, in squared rows by which steps differ from their mean
# Share of a step's time that a verified guess must gain beyond what its row costs: building a step of rows of one
# sequence takes longer, and measured times vary.
MIN_GAIN = 0.03


@dataclass(slots=True)
class DraftState:
    """State of the planner for one sequence."""

    lookup: PromptLookup = field(default_factory=PromptLookup)
    hit_rate: float = FIRST_HIT_RATE  # moving average: how often a guess came true whose predecessors had
    proposal: list[int] = field(default_factory=list)  # guesses for the step that is planned


class StepTimePredictor:
    """Seconds of a step by its number of rows: a line through the average of the latest steps. Its slope is that of
    these steps as far as their numbers of rows differ, and that of the warm-up's steps otherwise."""

    def __init__(self, measured: Iterable[tuple[int, float]]) -> None:
        """`measured`: numbers of rows and seconds of the warm-up's steps. More rows never count as faster."""
        points: dict[int, float] = {}
        for num_rows, seconds in measured:
            points[num_rows] = min(seconds, points.get(num_rows, seconds))
        self._rows = sorted(points)
        self._seconds: list[float] = []
        for num_rows in self._rows:
            self._seconds.append(max([points[num_rows], *self._seconds[-1:]]))
        self._slopes = [(after - before) / (right - left) for (left, right), (before, after)
                        in zip(pairwise(self._rows), pairwise(self._seconds), strict=True)]
        # moving averages of the latest steps; none yet while the seconds are 0
        self._mean_rows = self._mean_seconds = self._row_variance = self._covariance = 0.0

    def record(self, num_rows: int, seconds: float) -> None:
        """Take the time of a step into the averages."""
        if not self._mean_seconds:
            self._mean_rows, self._mean_seconds = float(num_rows), seconds
            return
        # A step that took far longer was interrupted.
        more_rows, more_seconds = num_rows - self._mean_rows, min(seconds, 3 * self._mean_seconds) - self._mean_seconds
        self._mean_rows += more_rows * SECONDS_STEP
        self._mean_seconds += more_seconds * SECONDS_STEP
        self._row_variance += (more_rows * more_rows - self._row_variance) * SECONDS_STEP
        self._covariance += (more_rows * more_seconds - self._covariance) * SECONDS_STEP

    def predict(self, num_rows: int) -> tuple[float, float]:
        """Return the seconds of a step of this many rows, and of each row more."""
        expected, slope = self._predict_by_warmup(num_rows)
        if not self._mean_seconds:
            return expected, slope
        expected_mean, mean_slope = self._predict_by_warmup(round(self._mean_rows))
        if expected_mean:
            slope = (slope + mean_slope) / 2 / expected_mean * self._mean_seconds
        slope = max(0.0, (self._covariance + WARMUP_WEIGHT * slope) / (self._row_variance + WARMUP_WEIGHT))
        return max(self._mean_seconds + slope * (num_rows - self._mean_rows), self._mean_seconds / 10), slope

    def _predict_by_warmup(self, num_rows: int) -> tuple[float, float]:
        """Return seconds interpolated between the warm-up's steps, and their slope from there on. Beyond the largest
        they grow as between the last two."""
        if not self._slopes or num_rows < self._rows[0]:
            return (self._seconds[0] if self._seconds else 0.0), 0.0
        index = min(bisect_right(self._rows, num_rows) - 1, len(self._slopes) - 1)
        return self._seconds[index] + self._slopes[index] * (num_rows - self._rows[index]), self._slopes[index]


class DraftPlanner:
    """Planner for sequences of one model, with at most `max_draft_tokens` guesses per sequence and step."""

    def __init__(self, max_draft_tokens: int, max_positions: int, step_seconds: StepTimePredictor) -> None:
        self.max_draft_tokens = max_draft_tokens
        self._step_seconds = step_seconds
        self._max_positions = max_positions

    def plan(self, step: Step) -> None:
        """Add to the step the guesses that it verifies."""
        # (minus the probability that the next guess of a sequence counts, index of the sequence, number of the guess)
        candidates: list[tuple[float, int, int]] = []
        for index, sequence in enumerate(step.decodes):
            state = sequence.draft_state = sequence.draft_state or DraftState()
            # Each guess needs a position for itself, and the token behind the last one needs none.
            max_tokens = min(self.max_draft_tokens, self._max_positions - len(sequence.tokens))
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
        expected_tokens, (seconds, row_seconds) = float(num_rows), self._step_seconds.predict(num_rows)
        drafts: dict[int, list[int]] = {}
        while candidates:
            negative_probability, index, number = candidates[0]
            if -negative_probability / expected_tokens < (row_seconds / seconds if seconds else 0.0) + MIN_GAIN:
                break  # the best candidate does not pay
            seconds += row_seconds
            expected_tokens -= negative_probability
            state = decodes[index].draft_state
            drafts[decodes[index].id] = state.proposal[:number]
            if number < len(state.proposal):
                heapreplace(candidates, (negative_probability * state.hit_rate, index, number + 1))
            else:
                heappop(candidates)
        return drafts

    def record(self, step: Step, new_tokens: Mapping[int, list[int]], seconds: float) -> None:
        """Take the step's time into account, and compare guesses with its tokens: of a sequence whose guesses it has
        not verified the first one."""
        if not step.chunks:
            self._step_seconds.record(len(step.decodes) + sum(map(len, step.drafts.values())), seconds)
        for sequence in step.decodes:
            state = sequence.draft_state
            guesses = step.drafts.get(sequence.id) or state.proposal[:1]
            for guess, token in zip(guesses, new_tokens.get(sequence.id, ()), strict=False):
                state.hit_rate += ((guess == token) - state.hit_rate) * HIT_RATE_STEP


def broadcast_drafts(step: Step, max_draft_tokens: int, group: RankGroup) -> None:
    """Set the guesses of the step to those of rank 0."""
    padded = [(draft + [-1] * max_draft_tokens)[:max_draft_tokens]
              for draft in (step.drafts.get(sequence.id, []) for sequence in step.decodes)]
    shared = group.broadcast(torch.tensor(padded, dtype=torch.int64)).tolist()
    step.drafts = {sequence.id: draft for sequence, row in zip(step.decodes, shared, strict=True)
                   if (draft := [token for token in row if token >= 0])}
