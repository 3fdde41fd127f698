"""Waiting sequences by tenant, and the tenants' fair shares.

Each tenant's sequences are in priority order. Those that need a resource which is not loaded are set aside. Suspended
ones wait for their clients, not for their turn: they are kept apart and are no demand.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field

from router.request import LoadableResource, RequestKind, Tenant
from router.scheduler.sequence import Sequence

COST_PER_GENERATED_TOKEN = 2.0  # a prompt's token costs 1


@dataclass(slots=True, eq=False)
class FairShares:
    """Fair shares of tenants: a virtual counter per tenant of cost (in tokens) over weight. The smallest goes first.

    A tenant that returns after it had no requests starts at the smallest counter of the active tenants, so that idle
    time earns no credit.
    """

    _virtual_counters: dict[str, float] = field(default_factory=dict)
    _num_unfinished: dict[str, int] = field(default_factory=dict)  # unfinished sequences, of tenants that have any
    has_several_tenants: bool = False  # whether more than one tenant has unfinished sequences

    def num_unfinished(self, tenant: Tenant) -> int:
        return self._num_unfinished.get(tenant.name, 0)

    def add_sequence(self, tenant: Tenant) -> None:
        """Count a new sequence of this tenant."""
        if tenant.name not in self._num_unfinished:
            least = min((self._virtual_counters[name] for name in self._num_unfinished), default=0.0)
            self._virtual_counters[tenant.name] = max(self._virtual_counters.get(tenant.name, 0.0), least)
            self._num_unfinished[tenant.name] = 0
            self.has_several_tenants = len(self._num_unfinished) > 1
        self._num_unfinished[tenant.name] += 1

    def remove_sequence(self, tenant: Tenant) -> None:
        self._num_unfinished[tenant.name] -= 1
        if not self._num_unfinished[tenant.name]:
            del self._num_unfinished[tenant.name]
            self.has_several_tenants = len(self._num_unfinished) > 1

    def charge_tenant(self, tenant: Tenant, cost: float) -> None:
        self._virtual_counters[tenant.name] += cost / tenant.weight

    def charge_prompt(self, sequence: Sequence, num_chunk_tokens: int) -> None:
        """Charge the tenant for the given tokens among the last `num_chunk_tokens` tokens sent to be computed.

        Each given token is charged at most once: the tenant does not pay for recomputation after a preemption or a
        loss, and nothing is charged while no other tenant has unfinished sequences.
        """
        end = min(sequence.num_scheduled_tokens, sequence.request.num_given_tokens)
        num_new_tokens = end - max(sequence.num_scheduled_tokens - num_chunk_tokens, sequence.num_charged_tokens)
        if num_new_tokens > 0:
            sequence.num_charged_tokens = end
            if self.has_several_tenants:
                self.charge_tenant(sequence.request.tenant, num_new_tokens)

    def sort_tenants(self, tenants: Iterable[str]) -> list[str]:
        """Sort tenants by counter, then by number of unfinished sequences, smallest first."""
        return sorted(tenants, key=self.turn_key)

    def turn_key(self, tenant_name: str) -> tuple[float, int, str]:
        return self._virtual_counters[tenant_name], self._num_unfinished[tenant_name], tenant_name

    def has_received_less(self, tenant_name: str, other_name: str) -> bool:
        return self.turn_key(tenant_name) < self.turn_key(other_name)


@dataclass(slots=True)
class QueueDemand:
    """Number of waiting sequences and of their tokens: prompts, and output from before a preemption or loss."""

    num_sequences: int = 0
    num_tokens: int = 0

    def add(self, sequence: Sequence) -> None:
        self.num_sequences += 1
        self.num_tokens += sequence.length

    def remove(self, sequence: Sequence) -> None:
        self.num_sequences -= 1
        self.num_tokens -= sequence.length


@dataclass(slots=True)
class TenantQueue:
    """Queue of one tenant: `runnable` has the sequences whose resources are loaded, `demand` counts all but those
    suspended."""

    runnable: list[Sequence] = field(default_factory=list)
    demand: QueueDemand = field(default_factory=QueueDemand)


@dataclass(slots=True, eq=False, repr=False)
class WaitingQueue:
    """All waiting sequences: by tenant, or if they lack a resource (set aside) by that resource, or suspended ones."""

    _available_resources: Collection[LoadableResource] = ()  # the live set of loaded resources; its owner changes it
    _tenant_queues: dict[str, TenantQueue] = field(default_factory=dict)  # by tenant; none is empty
    demand: QueueDemand = field(default_factory=QueueDemand)  # of all but those suspended
    num_pooling: int = 0  # requests for embeddings or labels in `demand`; stored because every step reads it
    # Sequences set aside, by the resource that they lack, highest priority first; the longest awaited resource first.
    set_aside_by_resource: dict[LoadableResource, list[Sequence]] = field(default_factory=dict)
    # Loads that are asked for even if no sequence waits: neither fulfilled, nor dropped by a failure or an unload.
    requested_loads: dict[LoadableResource, None] = field(default_factory=dict)
    _suspended: dict[int, Sequence] = field(default_factory=dict)  # by id; a resource that they lack is not loaded

    def __len__(self) -> int:
        return self.demand.num_sequences + len(self._suspended)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.iter_unsuspended()
        yield from self._suspended.values()

    def iter_unsuspended(self) -> Iterator[Sequence]:
        """Iterate tenant by tenant, highest priority first, and then over the sequences set aside."""
        for tenant_queue in self._tenant_queues.values():
            yield from tenant_queue.runnable
        for set_aside in self.set_aside_by_resource.values():
            yield from set_aside

    @property
    def tenants(self) -> list[str]:
        """Names of the tenants that have a sequence not set aside."""
        return [name for name, tenant_queue in self._tenant_queues.items() if tenant_queue.runnable]

    @property
    def num_set_aside(self) -> int:
        return sum(map(len, self.set_aside_by_resource.values()))

    @property
    def num_runnable_generation(self) -> int:
        """Number of sequences that wait to generate text and are neither set aside nor suspended."""
        num_generation_set_aside = self.num_set_aside
        if num_generation_set_aside and self.num_pooling:
            num_generation_set_aside = sum(
                sequence.request.kind is RequestKind.GENERATE
                for sequences in self.set_aside_by_resource.values() for sequence in sequences)
        return self.demand.num_sequences - self.num_pooling - num_generation_set_aside

    def get_runnable_sequences(self, tenant: str) -> GenericSequence[Sequence]:
        """Return the tenant's sequences whose resources are loaded, without those suspended, highest priority first."""
        return self._tenant_queues[tenant].runnable if tenant in self._tenant_queues else ()

    def tenant_demand(self, tenant: str) -> QueueDemand:
        return self._tenant_queues[tenant].demand if tenant in self._tenant_queues else QueueDemand()

    def push(self, sequence: Sequence) -> None:
        """Add a sequence. One that returns keeps its arrival time, and with it a position near the front.

        `is_suspended` must not change while the sequence is in the queue.
        """
        if sequence.is_suspended:
            self._suspended[sequence.id] = sequence
            return
        tenant_queue = self._tenant_queues.setdefault(sequence.request.tenant.name, TenantQueue())
        self._insert_sequence(sequence, tenant_queue)
        tenant_queue.demand.add(sequence)
        self.demand.add(sequence)
        self.num_pooling += sequence.request.kind is not RequestKind.GENERATE

    def remove(self, sequence: Sequence) -> None:
        if sequence.is_suspended:
            del self._suspended[sequence.id]
            return
        tenant = sequence.request.tenant.name
        tenant_queue = self._tenant_queues[tenant]
        resource = sequence.missing_resource
        if resource is None:
            tenant_queue.runnable.remove(sequence)
        else:
            self.set_aside_by_resource[resource].remove(sequence)
            if not self.set_aside_by_resource[resource] and resource not in self.requested_loads:
                del self.set_aside_by_resource[resource]
        tenant_queue.demand.remove(sequence)
        self.demand.remove(sequence)
        self.num_pooling -= sequence.request.kind is not RequestKind.GENERATE
        if not tenant_queue.demand.num_sequences:
            del self._tenant_queues[tenant]

    def request_resource_load(self, resource: LoadableResource) -> None:
        """List the resource in `set_aside_by_resource`, even if no sequence waits for it, until it is loaded or
        `cancel_load_request` is called."""
        self.requested_loads[resource] = None
        self.set_aside_by_resource.setdefault(resource, [])

    def cancel_load_request(self, resource: LoadableResource) -> None:
        self.requested_loads.pop(resource, None)
        if self.set_aside_by_resource.get(resource) == []:
            del self.set_aside_by_resource[resource]

    def release_set_aside_sequences(self, resource: LoadableResource, now: float) -> None:
        """Queue the sequences that waited for a resource now loaded; they may still lack another."""
        self.requested_loads.pop(resource, None)
        self._reinsert_sequences(self.set_aside_by_resource.pop(resource, []), now)

    def set_aside_sequences(self, resource: LoadableResource, now: float) -> None:
        """Set aside the sequences that need a resource which is unloaded or about to be."""
        to_set_aside = [sequence for tenant_queue in self._tenant_queues.values()
                        for sequence in tenant_queue.runnable if resource in sequence.request.needed_resources]
        for sequence in to_set_aside:
            self._tenant_queues[sequence.request.tenant.name].runnable.remove(sequence)
        self._reinsert_sequences(to_set_aside, now)

    def _reinsert_sequences(self, sequences: list[Sequence], now: float) -> None:
        for sequence in sequences:
            self._insert_sequence(sequence, self._tenant_queues[sequence.request.tenant.name])
            sequence.timeline.enter_phase(sequence.waiting_phase, now)

    def _insert_sequence(self, sequence: Sequence, tenant_queue: TenantQueue) -> None:
        needed_resources = sequence.request.needed_resources
        sequence.missing_resource = (
            next((need for need in needed_resources if need not in self._available_resources), None)
            if needed_resources else None)
        waiting_list = (tenant_queue.runnable if sequence.missing_resource is None
                        else self.set_aside_by_resource.setdefault(sequence.missing_resource, []))
        insort(waiting_list, sequence, key=lambda waiting: waiting.priority_key)
