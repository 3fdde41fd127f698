"""Overlapped decode steps: the next step begins before the results of the last one are known.

Between two steps the device would idle while the host reads tokens, writes answers and prepares the next step. So the
ledger advances as if the tokens of the step under way were known, and the next step reads them on the device. If a
result needs the host, that step and the one behind it are run again, one after the other, with the same results as
without overlap. That costs two steps, so where it happens often, `Caution` suspends overlap for some steps.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from shard.attention.kv_cache import Cache
from shard.deferred import Answer, Later
from shard.host.device import UNDER_WAY
from shard.runner.cuda_graphs import Begun
from shard.runner.runner import Outcome, Runner, blocks_between
from shard.state.ledger import Ledger
from shard.state.results import Said
from shard.state.transaction import Step

REMEMBERED = 32  # steps that the moving average covers, about
BORNE = 1 / 16  # share of them that may have to be run again before overlap is suspended
WAITED_FOR = 32  # steps without overlap then, e.g. for a filter that keeps many candidates of a flat distribution

Run = Callable[[Step], Outcome]  # runs a step whose input tokens are all known
Tell = Callable[[Step, Mapping[int, Said], float], Answer]  # makes the answer from the results and the seconds


@dataclass(slots=True)
class Pending:
    step: Step
    places: list[int]  # index of the placeholder token in each decoding sequence
    began: float
    begun: Begun | None  # None: the step must be run again


class Caution:
    """Policy for overlap, which saves a part of a step, while a step that must be run again costs two."""

    def __init__(self) -> None:
        self._share = 0.0  # moving average: share of overlapped steps that had to be run again
        self._left = 0

    def waits(self) -> bool:
        """Return whether the next step must wait for the last one, and count that step."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def ended(self, *, well: bool) -> None:
        if not well and self._share > BORNE:
            self._left = WAITED_FOR
        self._share += ((not well) - self._share) / REMEMBERED


class Ahead:
    """Steps under way, at most UNDER_WAY, used from one thread. None begins while one must be run again."""

    def __init__(self, ledger: Ledger, runner: Runner, run: Run) -> None:
        self._ledger = ledger
        self._runner = runner
        self._run = run
        self._steps: deque[tuple[Pending, Later[Any]]] = deque()
        self._ended = 0.0  # when the last step ended
        self._caution = Caution()
        self._error: Exception | None = None  # of a failed step; all steps behind it raise the same

    def make_room(self) -> None:
        """Wait until another step may begin; raises the error of an earlier step."""
        if len(self._steps) == UNDER_WAY:
            self._steps[0][1].finish()
        if self._steps and self._steps[-1][0].begun is None:
            self.finish()

    def finish(self) -> None:
        """Finish the steps under way, in order; stops at the first that failed and raises its error."""
        while self._steps:
            self._steps[0][1].finish()

    def give_up(self) -> None:
        """Finish all steps under way, discarding their results and errors."""
        while self._steps:
            self._steps[0][1].settle()
        self._error = None

    def begin(self, step: Step, cache: Cache, tell: Tell[Answer]) -> Later[Answer] | None:
        """Begin the step; call `make_room` before. Return None if it can only be run after the last step has ended."""
        if self._caution.waits() or self._overwrites_blocks_in_flight(step, cache.block_size):
            return None
        last = self._steps[-1][0].begun if self._steps else None
        began, begun = perf_counter(), self._runner.begin(step, cache, last)
        if begun is None:
            return None
        pending = Pending(step, self._ledger.expect(step), began, begun)
        later = Later(begun.wait, lambda: self._end(pending, cache, tell))
        self._steps.append((pending, later))
        return later

    def _overwrites_blocks_in_flight(self, step: Step, block_size: int) -> bool:
        """Return whether the step writes to a block of a sequence that a step under way is the last to compute.

        The step under way may have to be run again and must then find the block as it was."""
        ids = {sequence.id for sequence in step.decodes}
        blocks = {block for pending, _ in self._steps for sequence in pending.step.decodes
                  if sequence.id not in ids for block in sequence.blocks}
        return bool(blocks) and any(
            sequence.blocks[(len(sequence.tokens) - 1) // block_size] in blocks for sequence in step.decodes)

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
        """Wait for all steps under way and roll them back in the ledger, the youngest first."""
        self._caution.ended(well=False)
        for pending, _ in reversed(self._steps):
            if pending.begun is not None:
                pending.begun.wait()
                pending.begun = None
                self._ledger.take_back(pending.step, pending.places)

    def _leave_out_failed(self, pending: Pending, cache: Cache) -> None:
        """Drop sequences that failed in the step before. They ran in this one too, so zero the blocks they wrote to."""
        for sequence, place in zip(pending.step.decodes, pending.places, strict=True):
            if sequence.failure is not None:
                cache.zero(blocks_between(sequence, place - 1, place, cache.block_size))
        pending.step.leave_out_failed()
