"""A step on its way: who takes part, who must get tokens, what it puts into the cache, what it should cost."""

from collections.abc import Iterable
from dataclasses import dataclass

from router.costs import Load
from router.request import Wish
from router.sequence import Sequence
from router.steps import Draft, load_of_step


@dataclass(frozen=True, slots=True)
class Filled:
    """What a chunk puts into the cache. Who yielded and came back since has other blocks."""

    sequence: Sequence
    blocks: list[int]
    end: int  # tokens of the sequence

    @property
    def is_there(self) -> bool:
        return self.sequence.blocks is self.blocks


@dataclass(frozen=True, slots=True)
class Step:
    order: int
    members: tuple[Sequence, ...] = ()
    expects: tuple[Sequence, ...] = ()
    fills: tuple[Filled, ...] = ()
    load: Load | None = None  # none where nothing is computed
    crowded: bool = False  # there were prompts that did not fit in
    wish: Wish = Wish.TEXT

    @classmethod
    def of(cls, draft: Draft, order: int) -> "Step":
        """From here on it counts as computed."""
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
