"""What each tenant got of the shards: a virtual counter of cost over weight. Who has the smallest goes first.

A tenant that comes back after a time with nothing to do starts at the smallest counter of those who have: it saved up
nothing. Knows nothing of queues or steps; costs are tokens.
"""

from collections.abc import Iterable

from router.request import Tenant
from router.sequence import Sequence

PER_GENERATED_TOKEN = 2.0  # a prompt's token costs 1


class Shares:
    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._present: dict[str, int] = {}  # sequences in the house
        self.several = False  # whether there is anybody to be fair to

    def num_present(self, tenant: Tenant) -> int:
        return self._present.get(tenant.name, 0)

    def enter(self, tenant: Tenant) -> None:
        """One of its sequences came to the house."""
        if tenant.name not in self._present:
            least = min((self._counters[name] for name in self._present), default=0.0)
            self._counters[tenant.name] = max(self._counters.get(tenant.name, 0.0), least)
        self._present[tenant.name] = self._present.get(tenant.name, 0) + 1
        self.several = len(self._present) > 1

    def leave(self, tenant: Tenant) -> None:
        self._present[tenant.name] -= 1
        if not self._present[tenant.name]:
            del self._present[tenant.name]
            self.several = len(self._present) > 1

    def charge(self, tenant: Tenant, cost: float) -> None:
        self._counters[tenant.name] += cost / tenant.weight

    def charge_prompt(self, sequence: Sequence, length: int) -> None:
        """So many of its tokens will be computed. Each is paid once: what is computed anew after a yield or a loss is
        nobody's wish."""
        end = min(sequence.computed, len(sequence.request.prompt))
        fresh = end - max(sequence.computed - length, sequence.paid)
        if fresh > 0:
            sequence.paid = end
            if self.several:
                self.charge(sequence.request.tenant, fresh)

    def order(self, tenants: Iterable[str]) -> list[str]:
        """Whoever got least goes first, and among equals who asked for less."""
        return sorted(tenants, key=lambda name: (self._counters[name], self._present[name], name))
