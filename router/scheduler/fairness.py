"""Fair shares of tenants: a virtual counter per tenant of cost (in tokens) over weight. The smallest goes first.

A tenant that returns after it had no requests starts at the smallest counter of the active tenants, so that idle time
earns no credit.
"""

from collections.abc import Iterable

from router.request import Tenant
from router.scheduler.sequence import Sequence

COST_PER_GENERATED_TOKEN = 2.0  # a prompt's token costs 1


class FairShares:
    """Virtual counter of each tenant: the cost of its tokens over its weight."""

    def __init__(self) -> None:
        self._virtual_counters: dict[str, float] = {}
        self._num_unfinished: dict[str, int] = {}  # number of unfinished sequences; only of tenants that have any
        self.has_competition = False  # whether more than one tenant has unfinished sequences

    def num_unfinished(self, tenant: Tenant) -> int:
        return self._num_unfinished.get(tenant.name, 0)

    def add_sequence(self, tenant: Tenant) -> None:
        """Count a new sequence of this tenant."""
        if tenant.name not in self._num_unfinished:
            least = min((self._virtual_counters[name] for name in self._num_unfinished), default=0.0)
            self._virtual_counters[tenant.name] = max(self._virtual_counters.get(tenant.name, 0.0), least)
        self._num_unfinished[tenant.name] = self._num_unfinished.get(tenant.name, 0) + 1
        self.has_competition = len(self._num_unfinished) > 1

    def remove_sequence(self, tenant: Tenant) -> None:
        self._num_unfinished[tenant.name] -= 1
        if not self._num_unfinished[tenant.name]:
            del self._num_unfinished[tenant.name]
            self.has_competition = len(self._num_unfinished) > 1

    def charge_tenant(self, tenant: Tenant, cost: float) -> None:
        self._virtual_counters[tenant.name] += cost / tenant.weight

    def charge_prompt(self, sequence: Sequence, num_chunk_tokens: int) -> None:
        """Charge the tenant for the prompt tokens among the last `num_chunk_tokens` tokens sent to be computed.

        Each prompt token is charged at most once: the tenant does not pay for recomputation after a preemption or a
        loss, and nothing is charged while no other tenant has unfinished sequences.
        """
        end = min(sequence.num_sent_tokens, len(sequence.request.prompt))
        num_new_tokens = end - max(sequence.num_sent_tokens - num_chunk_tokens, sequence.num_charged_tokens)
        if num_new_tokens > 0:
            sequence.num_charged_tokens = end
            if self.has_competition:
                self.charge_tenant(sequence.request.tenant, num_new_tokens)

    def sort_tenants(self, tenants: Iterable[str]) -> list[str]:
        """Sort tenants by counter, then by number of unfinished sequences, smallest first."""
        return sorted(tenants, key=lambda name: (self._virtual_counters[name], self._num_unfinished[name], name))
