"""What a step may still take in: tokens, and the seconds that prompts may add to it. Arithmetic only."""

from dataclasses import dataclass
from math import inf

from router.costs import CostModel, Load


@dataclass(slots=True)
class Budget:
    tokens: int
    block_size: int
    seconds: float = inf
    costs: CostModel | None = None

    @classmethod
    def beside(cls, ready: Load, tokens: int, block_size: int, promise: float, costs: CostModel) -> "Budget":
        """What prompts may add to a step of these ready sequences: the whole step, however unlucky, takes no longer
        than predicted without prompts plus the promise."""
        alone = costs.predict(ready)
        return cls(tokens, block_size, (alone + promise) / costs.caution - alone, costs)

    def chunk(self, start: int, left: int) -> int:
        """Tokens of a prompt that may run from `start` on: all that are left, or whole blocks, or none."""
        most = min(left, self.tokens)
        if self.costs is not None and self.seconds != inf:
            most = min(most, self._within_seconds(self.costs, start))
        return most if most == left else self._whole_blocks(start, most)

    def spend(self, start: int, length: int) -> None:
        self.tokens -= length
        if self.costs is not None and self.seconds != inf:
            self.seconds -= self.costs.predict(load_of_chunk(start, length)) - self.costs.predict(Load())

    def _within_seconds(self, costs: CostModel, start: int) -> int:
        _, per_row, per_token, per_place = costs.coefficients
        room = self.seconds - per_row - per_place * start
        return max(0, int(min(room / (per_token + per_place), 1e9))) if room > 0.0 else 0

    def _whole_blocks(self, start: int, most: int) -> int:
        end = (start + most) // self.block_size * self.block_size
        return max(0, end - start)


def load_of_chunk(start: int, length: int) -> Load:
    """A chunk is one row more, its tokens, and the places that it reads."""
    return Load(rows=1, chunk_tokens=length, context=start + length)
