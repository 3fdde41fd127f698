"""Fair shares of tenants: a virtual counter per tenant of cost (in tokens) over weight. The smallest goes first.

A tenant that returns after it had no requests starts at the smallest counter of the active tenants, so that idle time
earns no credit.
"""

from collections.abc import Iterable

from router.request import Tenant
from router.scheduler.sequence import Sequence

PER_GENERATED_TOKEN = 2.0  # a prompt's token costs 1


class Shares:
    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._present: dict[str, int] = {}  # number of unfinished sequences; only of tenants that have any
        self.several = False  # whether more than one tenant has unfinished sequences

    def num_present(self, tenant: Tenant) -> int:
        return self._present.get(tenant.name, 0)

    def enter(self, tenant: Tenant) -> None:
        """Count a new sequence of this tenant."""
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
        """Charge the tenant for the prompt tokens among the last `length` tokens sent to be computed.

        Each prompt token is charged at most once: the tenant does not pay for recomputation after a preemption or a
        loss, and nothing is charged while no other tenant has unfinished sequences.
        """
        end = min(sequence.computed, len(sequence.request.prompt))
        fresh = end - max(sequence.computed - length, sequence.paid)
        if fresh > 0:
            sequence.paid = end
            if self.several:
                self.charge(sequence.request.tenant, fresh)

    def order(self, tenants: Iterable[str]) -> list[str]:
        """Sort tenants by counter, then by number of unfinished sequences, smallest first."""
        return sorted(tenants, key=lambda name: (self._counters[name], self._present[name], name))
