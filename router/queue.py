"""The sequences that wait, those of each tenant best first. Knows nothing of room or of whose turn it is."""

from bisect import insort
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

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
    """Those of one tenant."""

    waiting: list[Sequence] = field(default_factory=list)
    demand: Demand = field(default_factory=Demand)


class Queue:
    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}  # by tenant; none is empty
        self.demand = Demand()

    def __len__(self) -> int:
        return self.demand.count

    def __iter__(self) -> Iterator[Sequence]:
        """Best first within a tenant, the tenants one after the other."""
        for line in self._lines.values():
            yield from line.waiting

    @property
    def tenants(self) -> list[str]:
        """Those with somebody who waits."""
        return list(self._lines)

    def of(self, tenant: str) -> Rows[Sequence]:
        return self._lines[tenant].waiting if tenant in self._lines else ()

    def demand_of(self, tenant: str) -> Demand:
        return self._lines[tenant].demand if tenant in self._lines else Demand()

    def push(self, sequence: Sequence) -> None:
        """A sequence that comes back keeps its arrival time, and with it a place near the front."""
        line = self._lines.setdefault(sequence.request.tenant.name, Line())
        insort(line.waiting, sequence, key=_rank)
        line.demand.add(sequence, 1)
        self.demand.add(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant.name
        line = self._lines[tenant]
        line.waiting.remove(sequence)
        line.demand.add(sequence, -1)
        self.demand.add(sequence, -1)
        if not line.waiting:
            del self._lines[tenant]


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank
