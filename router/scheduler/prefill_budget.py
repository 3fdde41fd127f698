"""Limits of the prompt tokens in a step: their number, and the seconds that they may add to the decodes."""

from dataclasses import dataclass
from math import inf

from router.scheduler.cost_model import CostModel, Load

EARNED = 2.0  # seconds that prompts may add for each second of decodes that delayed them


@dataclass(slots=True)
class Budget:
    """Remaining budget of one step for chunks of prompts. The first chunk may have a larger one, `first_seconds`."""

    tokens: int
    block_size: int
    seconds: float = inf
    first_seconds: float = 0.0
    costs: CostModel | None = None

    def chunk(self, start: int, left: int) -> int:
        """Return how many tokens of a prompt may run from `start` on: all that are left, or whole blocks, or none."""
        most = min(left, self.tokens)
        if self.costs is not None and self.seconds != inf:
            most = min(most, self._within_seconds(self.costs, start))
        return most if most == left else self._whole_blocks(start, most)

    def spend(self, start: int, length: int) -> None:
        self.tokens -= length
        if self.costs is not None and self.seconds != inf:
            self.seconds -= seconds_of_chunk(self.costs, start, length)
            self.first_seconds = 0.0

    def _within_seconds(self, costs: CostModel, start: int) -> int:
        _, per_row, per_token, per_place = costs.coefficients
        room = max(self.seconds, self.first_seconds) - per_row - per_place * start
        return max(0, int(min(room / (per_token + per_place), 1e9))) if room > 0.0 else 0

    def _whole_blocks(self, start: int, most: int) -> int:
        end = (start + most) // self.block_size * self.block_size
        return max(0, end - start)


class PromptShare:
    """The seconds that prompts may add to steps in which sequences decode.

    Two bounds are combined. The stall promise protects decoding sequences: by the cost model and its safety factor
    (`caution`), the chunks of a step add at most `stall_seconds` to it. Earned seconds protect requests that wait for
    their first token: a second of decodes delays them by a second and earns two, times waiting / decoding if more
    wait than decode. The seconds earned since prompts last ran may be added even if they exceed the stall promise.

    Therefore, however slow steps are, prompts get two thirds of the time while any wait (at least half: they run in
    whole blocks, and a remainder below one block is lost), and decodes never delay a request for longer than the
    prompts before it and its own take. While no more sequences wait than decode, prompts add at most the largest of
    the stall promise, twice the step's time without them, and one block.

    The factor waiting / decoding applies to the first prompt alone: prompts that finish one after the other get no
    first token later than prompts that finish together, and most get it sooner.
    """

    def __init__(self) -> None:
        self._held_up = 0.0  # predicted seconds of decodes since prompts last ran, the next step's included

    def seconds(self, decodes: Load, num_waiting: int, stall_seconds: float, costs: CostModel) -> tuple[float, float]:
        """Return the seconds that all prompts together, and the first alone, may add to a step of these decodes."""
        self._held_up += costs.predict(decodes)
        earned = EARNED * self._held_up
        seconds = max(stall_seconds / costs.caution, earned)
        return seconds, max(seconds, earned * num_waiting / decodes.rows)

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
