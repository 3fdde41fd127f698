"""The sequences that wait, those of each tenant best first. Who needs what is not on the shards is set aside until it
is. Knows nothing of room or of whose turn it is.
"""

from bisect import insort
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from router.request import Resource, Wish
from router.sequence import Sequence


@dataclass(slots=True)
class Demand:
    """How many wait, and how much of prompts, and of what was generated before a yield or a loss."""

    count: int = 0
    tokens: int = 0

    def add(self, sequence: Sequence, sign: int) -> None:
        self.count += sign
        self.tokens += sign * sequence.length


@dataclass(slots=True)
class Line:
    """Those of one tenant: in `waiting` who has all that it needs."""

    waiting: list[Sequence] = field(default_factory=list)
    demand: Demand = field(default_factory=Demand)


class Queue:
    def __init__(self, present: Collection[Resource] = ()) -> None:
        """`present` is what is on the shards, and changes."""
        self._present = present
        self._lines: dict[str, Line] = {}  # by tenant; in none is nobody
        self.demand = Demand()
        self.num_embeds = 0  # of all; counted, since every step asks for it
        # Who is set aside for what, best first; what has been waited for longest first.
        self.aside: dict[Resource, list[Sequence]] = {}
        self._wishes: dict[Resource, None] = {}  # what should come though nobody waits for it, or nobody else

    def __len__(self) -> int:
        return self.demand.count

    def __iter__(self) -> Iterator[Sequence]:
        """Best first within a tenant, the tenants one after the other, and then those that are set aside."""
        for line in self._lines.values():
            yield from line.waiting
        for others in self.aside.values():
            yield from others

    @property
    def tenants(self) -> list[str]:
        """Those with somebody who could start."""
        return [name for name, line in self._lines.items() if line.waiting]

    @property
    def num_aside(self) -> int:
        return sum(map(len, self.aside.values()))

    @property
    def num_able(self) -> int:
        """Return how many sequences wait for text to be generated and are not set aside."""
        aside = self.num_aside
        if aside and self.num_embeds:
            aside = sum(sequence.request.wish is Wish.TEXT for line in self.aside.values() for sequence in line)
        return self.demand.count - self.num_embeds - aside

    def of(self, tenant: str) -> Rows[Sequence]:
        """Those that have what they need."""
        return self._lines[tenant].waiting if tenant in self._lines else ()

    def demand_of(self, tenant: str) -> Demand:
        return self._lines[tenant].demand if tenant in self._lines else Demand()

    def push(self, sequence: Sequence) -> None:
        """A sequence that comes back keeps its arrival time, and with it a place near the front."""
        line = self._lines.setdefault(sequence.request.tenant.name, Line())
        self._put(sequence, line)
        line.demand.add(sequence, 1)
        self.demand.add(sequence, 1)
        self.num_embeds += sequence.request.wish is not Wish.TEXT

    def remove(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant.name
        line = self._lines[tenant]
        self._take(sequence, line)
        line.demand.add(sequence, -1)
        self.demand.add(sequence, -1)
        self.num_embeds -= sequence.request.wish is not Wish.TEXT
        if not line.demand.count:
            del self._lines[tenant]

    def wish(self, resource: Resource) -> None:
        """It is waited for, until it comes or the wish is taken back, whoever of those who wait for it leaves."""
        self._wishes[resource] = None
        self.aside.setdefault(resource, [])

    def unwish(self, resource: Resource) -> None:
        self._wishes.pop(resource, None)
        if not self.aside.get(resource, True):
            del self.aside[resource]

    def came(self, resource: Resource) -> list[Sequence]:
        """It is on the shards now. Returns who waited for it, and may wait for something else now."""
        self._wishes.pop(resource, None)
        return self._put_again(self.aside.pop(resource, []))

    def left(self, resource: Resource) -> list[Sequence]:
        """It is not on the shards any more, or soon will not be. Returns who waits for it now."""
        leaving = [sequence for line in self._lines.values() for sequence in line.waiting
                   if resource in sequence.request.needs]
        for sequence in leaving:
            self._lines[sequence.request.tenant.name].waiting.remove(sequence)
        return self._put_again(leaving)

    # -- the inside

    def _put_again(self, sequences: list[Sequence]) -> list[Sequence]:
        for sequence in sequences:
            self._put(sequence, self._lines[sequence.request.tenant.name])
        return sequences

    def _put(self, sequence: Sequence, line: Line) -> None:
        needs = sequence.request.needs
        sequence.lacks = next((need for need in needs if need not in self._present), None) if needs else None
        others = line.waiting if sequence.lacks is None else self.aside.setdefault(sequence.lacks, [])
        insort(others, sequence, key=_rank)

    def _take(self, sequence: Sequence, line: Line) -> None:
        if sequence.lacks is None:
            line.waiting.remove(sequence)
            return
        others = self.aside[sequence.lacks]
        others.remove(sequence)
        if not others and sequence.lacks not in self._wishes:
            del self.aside[sequence.lacks]


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank
