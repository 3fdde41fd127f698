"""Waiting sequences by tenant, in order of rank. Those that need a resource which is not loaded are set aside."""

from bisect import insort
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from router.request import Resource, Wish
from router.scheduler.sequence import Sequence


@dataclass(slots=True)
class Demand:
    """Number of waiting sequences and of their tokens: prompts, and output from before a preemption or loss."""

    count: int = 0
    tokens: int = 0

    def add(self, sequence: Sequence, sign: int) -> None:
        self.count += sign
        self.tokens += sign * sequence.length


@dataclass(slots=True)
class Line:
    """Queue of one tenant: `waiting` has the sequences whose resources are loaded, `demand` counts all."""

    waiting: list[Sequence] = field(default_factory=list)
    demand: Demand = field(default_factory=Demand)


class Queue:
    """All waiting sequences: those that could start by tenant, the others by the resource that they lack."""

    def __init__(self, present: Collection[Resource] = ()) -> None:
        """Create an empty queue. `present` is the live set of loaded resources; its owner changes it."""
        self._present = present
        self._lines: dict[str, Line] = {}  # by tenant; none is empty
        self.demand = Demand()
        self.num_embeds = 0  # waiting requests for embeddings or labels; stored because every step reads it
        # Sequences set aside, by the resource that they lack, best rank first; the longest awaited resource is first.
        self.aside: dict[Resource, list[Sequence]] = {}
        self._wishes: dict[Resource, None] = {}  # to be loaded even if no sequence waits for them

    def __len__(self) -> int:
        return self.demand.count

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate tenant by tenant, best rank first, and then over the sequences set aside."""
        for line in self._lines.values():
            yield from line.waiting
        for others in self.aside.values():
            yield from others

    @property
    def tenants(self) -> list[str]:
        """Names of the tenants that have a sequence not set aside."""
        return [name for name, line in self._lines.items() if line.waiting]

    @property
    def num_aside(self) -> int:
        return sum(map(len, self.aside.values()))

    @property
    def num_able(self) -> int:
        """Number of sequences that wait to generate text and are not set aside."""
        aside = self.num_aside
        if aside and self.num_embeds:
            aside = sum(sequence.request.wish is Wish.TEXT for line in self.aside.values() for sequence in line)
        return self.demand.count - self.num_embeds - aside

    def of(self, tenant: str) -> Rows[Sequence]:
        """Return the tenant's sequences whose resources are loaded, best rank first."""
        return self._lines[tenant].waiting if tenant in self._lines else ()

    def demand_of(self, tenant: str) -> Demand:
        return self._lines[tenant].demand if tenant in self._lines else Demand()

    def push(self, sequence: Sequence) -> None:
        """Add a sequence. One that returns keeps its arrival time, and with it a position near the front."""
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
        """List the resource in `aside`, even if no sequence waits for it, until it is loaded or `unwish` is called."""
        self._wishes[resource] = None
        self.aside.setdefault(resource, [])

    def unwish(self, resource: Resource) -> None:
        self._wishes.pop(resource, None)
        if not self.aside.get(resource, True):
            del self.aside[resource]

    def came(self, resource: Resource) -> list[Sequence]:
        """Queue and return the sequences that waited for a resource now loaded; they may still lack another."""
        self._wishes.pop(resource, None)
        return self._put_again(self.aside.pop(resource, []))

    def left(self, resource: Resource) -> list[Sequence]:
        """Set aside and return the sequences that need a resource which is unloaded or about to be."""
        leaving = [sequence for line in self._lines.values() for sequence in line.waiting
                   if resource in sequence.request.needs]
        for sequence in leaving:
            self._lines[sequence.request.tenant.name].waiting.remove(sequence)
        return self._put_again(leaving)

    # -- internals

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
