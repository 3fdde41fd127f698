"""Limits of the prompt tokens in a step: their number, and the seconds that they may add to the decodes."""

from dataclasses import dataclass
from math import inf

from router.scheduler.cost_model import CostModel, Load

EARNED = 2.0  # seconds that prompts may add for each second of decodes that delayed them


@dataclass(slots=True)
class Budget:
    """Remaining budget of one step for chunks of prompts.

    The first chunk may have a larger one, `first_seconds`, and if that is too little for a block, one block within
    `block_seconds`.
    """

    tokens: int
    block_size: int
    seconds: float = inf
    first_seconds: float = 0.0
    block_seconds: float = 0.0
    costs: CostModel | None = None

    def chunk(self, start: int, left: int) -> int:
        """Return how many tokens of a prompt may run from `start` on: all that are left, or whole blocks, or none."""
        most = min(left, self.tokens)
        if self.costs is None or self.seconds == inf:
            return self._runnable(start, left, most)
        length = self._runnable(start, left, min(most, self._within(max(self.seconds, self.first_seconds), start)))
        if length or not self.block_seconds:
            return length
        rest_of_block = self.block_size - start % self.block_size
        return self._runnable(start, left, min(most, rest_of_block, self._within(self.block_seconds, start)))

    def spend(self, start: int, length: int) -> None:
        self.tokens -= length
        if self.costs is not None and self.seconds != inf:
            self.seconds -= seconds_of_chunk(self.costs, start, length)
            self.first_seconds = self.block_seconds = 0.0

    def _within(self, seconds: float, start: int) -> int:
        assert self.costs is not None
        _, per_row, per_token, per_place = self.costs.coefficients
        room = seconds - per_row - per_place * start
        return max(0, int(min(room / (per_token + per_place), 1e9))) if room > 0.0 else 0

    def _runnable(self, start: int, left: int, most: int) -> int:
        """Return `most` if that completes the prompt, or else what fills whole blocks."""
        if most == left:
            return most
        end = (start + most) // self.block_size * self.block_size
        return max(0, end - start)


class PromptShare:
    """The seconds that prompts may add to steps in which sequences decode.

    Two bounds are combined. The stall promise protects decoding sequences: by the cost model and its safety factor
    (`caution`), the chunks of a step add at most `stall_seconds` to it. Earned seconds protect requests that wait for
    their first token: a second of decodes delays them by a second and earns two, times waiting / decoding if more
    wait than decode. The seconds that a step earns may be added to it even if they exceed the stall promise. If they
    do not pay for a block, they are kept until those of several steps pay for one.

    Therefore, however slow steps are, prompts get two thirds of the time while any wait (at least half: they run in
    whole blocks, and a remainder below one block is lost), and decodes never delay a request for longer than the
    prompts before it and its own take. While no more sequences wait than decode, prompts add at most the largest of
    the stall promise, twice the step's time without them, and one block.

    The factor waiting / decoding applies to the first prompt alone: prompts that finish one after the other get no
    first token later than prompts that finish together, and most get it sooner.
    """

    def __init__(self) -> None:
        self._held_up = 0.0  # predicted seconds of decodes since prompts last ran, the next step's included

    def seconds(self, decodes: Load, num_waiting: int, stall_seconds: float,
                costs: CostModel) -> tuple[float, float, float]:
        """Return the seconds that all prompts, the first prompt, and a single block may add to these decodes."""
        alone, ratio = costs.predict(decodes), num_waiting / decodes.rows
        self._held_up += alone
        seconds = max(stall_seconds / costs.caution, EARNED * alone)
        first_seconds = max(seconds, EARNED * alone * ratio)
        return seconds, first_seconds, max(first_seconds, EARNED * self._held_up * max(1.0, ratio))

    def planned(self, *, left_out: bool) -> None:
        """Record a planned step: the earned seconds are kept only if it left out all waiting prompts (`left_out`)."""
        if not left_out:
            self._held_up = 0.0


def load_of_chunk(start: int, length: int) -> Load:
    """Return the load that a chunk adds to a step: a row, its tokens, and the cache slots that it reads."""
    return Load(rows=1, chunk_tokens=length, context=start + length)


def seconds_of_chunk(costs: CostModel, start: int, length: int) -> float:
    """Return the seconds that a chunk is predicted to add to a step."""
    return costs.predict(load_of_chunk(start, length)) - costs.predict(Load())
