"""How many prompt tokens a step may take in: by their number, and by the seconds that they may add to the decodes."""

from dataclasses import dataclass
from math import inf

from router.costs import CostModel, Load

EARNED = 2.0  # seconds that prompts may add for each second of decodes that held them up


@dataclass(slots=True)
class Budget:
    """What is left of one step for chunks of prompts. The first chunk of a step may have a budget of its own."""

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

    Two bounds meet here. The stall promise protects sequences that decode: the chunks of a step, by the cost model and
    its caution, add at most `stall_seconds` to it. Requests that wait for their first token are protected by what
    prompts earn: a second of decodes holds them up for a second and earns two, times waiting / decoding where more
    wait than decode. What was earned since prompts last ran may be added, whatever the stall promise says. So however
    slow a step is, prompts get two thirds of the time while any wait (at least half: they run in whole blocks, and what
    is left of less than one is lost), decodes never hold a request up for longer than the prompts before it and
    its own take, and while no more wait than decode prompts add at most the stall promise, twice what the step
    takes without them, or one block, whichever is most. What waiting / decoding adds belongs to the first prompt alone:
    to end prompts one after the other brings no first token later than to end them together, and most of them sooner.
    """

    def __init__(self) -> None:
        self._held_up = 0.0  # predicted seconds of decodes since prompts last ran, the next step's included

    def seconds(self, decodes: Load, num_waiting: int, stall_seconds: float, costs: CostModel) -> tuple[float, float]:
        """Return the seconds that all prompts together may add to a step of these decodes, and that the first may."""
        self._held_up += costs.predict(decodes)
        earned = EARNED * self._held_up
        seconds = max(stall_seconds / costs.caution, earned)
        return seconds, max(seconds, earned * num_waiting / decodes.rows)

    def planned(self, *, left_out: bool) -> None:
        """Tell whether the step that was planned left waiting prompts out altogether: then what they earned is kept."""
        if not left_out:
            self._held_up = 0.0


def load_of_chunk(start: int, length: int) -> Load:
    """Return what a chunk adds to a step: a row, its tokens, and the places that it reads."""
    return Load(rows=1, chunk_tokens=length, context=start + length)


def seconds_of_chunk(costs: CostModel, start: int, length: int) -> float:
    """Return the seconds that a chunk is predicted to add to a step."""
    return costs.predict(load_of_chunk(start, length)) - costs.predict(Load())
