"""Decode steps that begin before it is known what came of the last.

Between two steps a device would wait while the host reads tokens, tells of them and prepares what is next. So the
ledger goes on as if the tokens of the step under way were known, and the next one finds them on the device. Where
something came out that has to be looked at, that step and the one behind it are run anew, one after the other: then
nothing is different from having waited. That costs two steps, so where it happens often the next ones are waited for.
Knows nothing of messages.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from shard.answer import Said
from shard.batch import Ledger
from shard.cache import Cache
from shard.change import Step
from shard.device import UNDER_WAY
from shard.later import Answer, Later
from shard.replay import Begun
from shard.runner import Outcome, Runner, blocks_between

REMEMBERED = 32  # steps, about
BORNE = 1 / 16  # of them that had to be run anew
WAITED_FOR = 32  # steps, where it is more: a filter that keeps many where odds are flat

Run = Callable[[Step], Outcome]  # a step of which all is known
Tell = Callable[[Step, Mapping[int, Said], float], Answer]  # what came of it, and in how many seconds


@dataclass(slots=True)
class Pending:
    step: Step
    places: list[int]  # where, in those who decode, the tokens stand that are expected
    began: float
    begun: Begun | None  # None: it has to be run anew


class Caution:
    """Who goes ahead saves a part of a step; what has to be run anew costs two. So a few such are borne with."""

    def __init__(self) -> None:
        self._share = 0.0  # of the last ones that began ahead, of those that had to be run anew
        self._left = 0

    def waits(self) -> bool:
        """Whether the next step does not begin ahead."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def ended(self, *, well: bool) -> None:
        if not well and self._share > BORNE:
            self._left = WAITED_FOR
        self._share += ((not well) - self._share) / REMEMBERED


class Ahead:
    """The steps under way, all from one thread. With one that has to be run anew nothing begins."""

    def __init__(self, ledger: Ledger, runner: Runner, run: Run) -> None:
        self._ledger = ledger
        self._runner = runner
        self._run = run
        self._steps: deque[tuple[Pending, Later[Any]]] = deque()
        self._ended = 0.0  # when the last came to its end
        self._caution = Caution()
        self._error: Exception | None = None  # what kept one from its end, and so all behind it

    def make_room(self) -> None:
        """For one more; raises what kept another from its end."""
        if len(self._steps) == UNDER_WAY:
            self._steps[0][1].finish()
        if self._steps and self._steps[-1][0].begun is None:
            self.finish()

    def finish(self) -> None:
        """All that is under way; raises what kept one from its end."""
        while self._steps:
            self._steps[0][1].finish()

    def give_up(self) -> None:
        """All, whatever comes of it, and forget it."""
        while self._steps:
            self._steps[0][1].settle()
        self._error = None

    def begin(self, step: Step, cache: Cache, tell: Tell[Answer]) -> Later[Answer] | None:
        """None if it can only be run when all of the last is known. There is room for it."""
        if self._caution.waits():
            return None
        last = self._steps[-1][0].begun if self._steps else None
        began, begun = perf_counter(), self._runner.begin(step, cache, last)
        if begun is None:
            return None
        pending = Pending(step, self._ledger.expect(step), began, begun)
        later = Later(begun.wait, lambda: self._end(pending, cache, tell))
        self._steps.append((pending, later))
        return later

    def _end(self, pending: Pending, cache: Cache, tell: Tell[Answer]) -> Answer:
        assert self._steps[0][0] is pending, "steps end in their order"
        try:
            if self._error is not None:
                raise self._error
            said = self._said(pending, cache)
        except Exception as error:
            self._error = error
            raise
        finally:
            self._steps.popleft()
        now = perf_counter()
        seconds, self._ended = now - max(pending.began, self._ended), now
        return tell(pending.step, said, seconds)

    def _said(self, pending: Pending, cache: Cache) -> Mapping[int, Said]:
        step, begun = pending.step, pending.begun
        if begun is None:
            self._leave_out_failed(pending, cache)
        elif (choices := begun.choices()) is not None:
            self._caution.ended(well=True)
            self._ledger.fulfil(step, pending.places, [token for token, _ in choices])
            return {sequence.id: Said([token], [logprob])
                    for sequence, (token, logprob) in zip(step.decodes, choices, strict=True)}
        else:
            self._take_back()
        if not step.decodes:
            return {}
        outcome = self._run(step)
        self._ledger.finish(step, {number: word.tokens for number, word in outcome.said.items()}, outcome.failures)
        return outcome.said

    def _take_back(self) -> None:
        """Nothing counts of what is under way, the youngest first."""
        self._caution.ended(well=False)
        for pending, _ in reversed(self._steps):
            if pending.begun is not None:
                pending.begun.wait()
                pending.begun = None
                self._ledger.take_back(pending.step, pending.places)

    def _leave_out_failed(self, pending: Pending, cache: Cache) -> None:
        """Who failed in the step before took part in this one all the same, and left something in the cache."""
        for sequence, place in zip(pending.step.decodes, pending.places, strict=True):
            if sequence.failure is not None:
                cache.zero(blocks_between(sequence, place - 1, place, cache.block_size))
        pending.step.leave_out_failed()
