"""Limits of the prompt tokens in a step: their number, and the seconds that they may add to the decodes."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from router.scheduler.cost_model import CostModel, StepLoad

EARNED_PER_DECODE_SECOND = 2.0  # seconds that prompts may add for each second of decodes that delayed them


@dataclass(slots=True)
class PrefillBudget:
    """Remaining budget of one step for chunks of prompts.

    The first chunk may take `first_chunk_seconds` instead of `seconds`. If these are too few for a block, it may be one
    block within `single_block_seconds`.
    """

    tokens: int
    block_size: int
    seconds: float = inf
    first_chunk_seconds: float = 0.0
    single_block_seconds: float = 0.0
    cost_model: CostModel | None = None

    def limit_seconds(self, allowance: "TimeAllowance", cost_model: CostModel) -> None:
        self.seconds, self.first_chunk_seconds, self.single_block_seconds = allowance
        self.cost_model = cost_model

    def max_chunk_length(self, start: int, num_left: int) -> int:
        """Return how many tokens of a prompt may run from `start` on: all that are left, or whole blocks, or none."""
        limit = min(num_left, self.tokens)
        if self.cost_model is None or self.seconds == inf:
            return self._round_to_blocks(start, num_left, limit)
        length = self._round_to_blocks(
            start, num_left,
            min(limit, self._tokens_within_seconds(max(self.seconds, self.first_chunk_seconds), start)))
        if length or not self.single_block_seconds:
            return length
        rest_of_block = self.block_size - start % self.block_size
        return self._round_to_blocks(start, num_left,
                                     min(limit, rest_of_block,
                                         self._tokens_within_seconds(self.single_block_seconds, start)))

    def spend(self, start: int, length: int) -> None:
        self.tokens -= length
        if self.cost_model is not None and self.seconds != inf:
            self.seconds -= predict_chunk_seconds(self.cost_model, start, length)
            self.first_chunk_seconds = self.single_block_seconds = 0.0

    def _tokens_within_seconds(self, seconds: float, start: int) -> int:
        assert self.cost_model is not None
        _, per_row, per_token, per_slot = self.cost_model.coefficients
        seconds_left = seconds - per_row - per_slot * start
        return max(0, int(min(seconds_left / (per_token + per_slot), 1e9))) if seconds_left > 0.0 else 0

    def _round_to_blocks(self, start: int, num_left: int, limit: int) -> int:
        """Return `limit` if that completes the prompt, or else what fills whole blocks."""
        if limit == num_left:
            return limit
        end = (start + limit) // self.block_size * self.block_size
        return max(0, end - start)


class TimeAllowance(NamedTuple):
    """The seconds that the prompts of one step may add to its decodes."""

    all_prompts: float
    first_prompt: float  # at least `all_prompts`: for the first chunk alone
    single_block: float  # at least `first_prompt`: for one block, if `first_prompt` does not pay for it


class PrefillTimeAllowance:
    """The seconds that prompts may add to steps in which sequences decode.

    For a step whose decodes take D seconds, with the ratio R of waiting to decoding sequences,
    E = EARNED_PER_DECODE_SECOND, and S the sum of D over the steps since prompts last ran, this one included:

        all_prompts  = max(max_stall_seconds / safety_factor, E * D)
        first_prompt = max(all_prompts, E * D * R)
        single_block = max(first_prompt, E * S * max(1, R))

    Two bounds are combined. The stall promise protects decoding sequences: by the cost model and its safety factor
    (`safety_factor`), the chunks of a step add at most `max_stall_seconds` to it. Earned seconds protect requests that
    wait for their first token: a second of decodes delays them by a second and earns two, times waiting / decoding if
    more wait than decode. The seconds that a step earns may be added to it even if they exceed the stall promise. If
    they do not pay for a block, they are kept until those of several steps pay for one.

    Therefore, however slow steps are, prompts get two thirds of the time while any wait (at least half: they run in
    whole blocks, and a remainder below one block is lost), and decodes never delay a request for longer than the
    prompts before it and its own take. While no more sequences wait than decode, prompts add at most the largest of
    the stall promise, twice the step's time without them, and one block.

    The factor waiting / decoding applies to the first prompt alone: prompts that finish one after the other get no
    first token later than prompts that finish together, and most get it sooner.
    """

    def __init__(self) -> None:
        # predicted seconds of decodes since prompts last ran, the next step's included
        self._decode_seconds_since_prefill = 0.0

    def update_allowance(self, decode_load: StepLoad, num_waiting: int, max_stall_seconds: float,
                         cost_model: CostModel) -> TimeAllowance:
        """Add the decodes of the next step to those that earn seconds, and return the allowance of that step."""
        decode_seconds = cost_model.predict(decode_load)
        ratio = num_waiting / decode_load.rows
        self._decode_seconds_since_prefill += decode_seconds
        all_prompts = max(max_stall_seconds / cost_model.safety_factor, EARNED_PER_DECODE_SECOND * decode_seconds)
        first_prompt = max(all_prompts, EARNED_PER_DECODE_SECOND * decode_seconds * ratio)
        single_block = max(first_prompt,
                           EARNED_PER_DECODE_SECOND * self._decode_seconds_since_prefill * max(1.0, ratio))
        return TimeAllowance(all_prompts, first_prompt, single_block)

    def record_planned_step(self, *, left_out_all_prompts: bool) -> None:
        """Record a planned step: the earned seconds are kept only if it left out all waiting prompts
        (`left_out_all_prompts`)."""
        if not left_out_all_prompts:
            self.reset()

    def reset(self) -> None:
        """Drop the earned seconds: no prompt waits for them."""
        self._decode_seconds_since_prefill = 0.0


def compute_chunk_load(start: int, length: int) -> StepLoad:
    """Return the load that a chunk adds to a step: a row, its tokens, and the cache slots that it reads."""
    return StepLoad(rows=1, chunk_tokens=length, context=start + length)


def predict_chunk_seconds(cost_model: CostModel, start: int, length: int) -> float:
    """Return the seconds that a chunk is predicted to add to a step."""
    return cost_model.predict(compute_chunk_load(start, length)) - cost_model.predict(StepLoad())
