"""Step in flight: its sequences, those that must get tokens, what it writes into the cache, and its load."""

from collections.abc import Iterable
from dataclasses import dataclass

from router.request import Wish
from router.scheduler.cost_model import Load
from router.scheduler.policies import Draft, load_of_step
from router.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Filled:
    """Cache content that a chunk writes, valid while the sequence has the same list of blocks (`is_there`).

    A sequence that was preempted since, and entered again, has other blocks.
    """

    sequence: Sequence
    blocks: list[int]
    end: int  # number of the sequence's tokens in the cache after the chunk

    @property
    def is_there(self) -> bool:
        return self.sequence.blocks is self.blocks


@dataclass(frozen=True, slots=True)
class Step:
    order: int
    members: tuple[Sequence, ...] = ()
    expects: tuple[Sequence, ...] = ()
    fills: tuple[Filled, ...] = ()
    load: Load | None = None  # None if nothing is computed
    crowded: bool = False  # some prompts did not fit into the step
    wish: Wish = Wish.TEXT

    @classmethod
    def of(cls, draft: Draft, order: int) -> "Step":
        """Create the step of a draft and advance its sequences: from here on their tokens count as computed."""
        if not draft.is_step:
            return cls(order)
        load = load_of_step(draft)
        expects = members = tuple(draft.ready)
        for sequence in draft.ready:
            sequence.computed += 1
            sequence.in_flight += 1
        for sequence, length in draft.chunks:
            sequence.computed += length
        if draft.chunks:
            prompts = [sequence for sequence, _ in draft.chunks]
            members = (*expects, *prompts)
            done = [sequence for sequence in prompts if sequence.is_ready]
            for sequence in done:
                sequence.in_flight += 1
            expects = (*expects, *done)
        fills = tuple([Filled(sequence, sequence.blocks, sequence.computed) for sequence, _ in draft.chunks])
        return cls(order, members, expects, fills, load, draft.crowded, draft.wish)


def numbers(sequences: Iterable[Sequence]) -> tuple[int, ...]:
    return tuple([sequence.number for sequence in sequences])
