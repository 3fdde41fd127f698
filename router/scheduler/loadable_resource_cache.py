"""Cache of adapters and grammars loaded on the shards: decides what to load and what to evict.

Adapters are limited in number (slots) and in bytes; grammars always fit. Loads are FIFO by first demand (with several
tenants, those of the tenant that has received least go first), so each awaited resource gets its turn. To make room,
adapters that no request needs are evicted first (LRU), then those loaded longest whose cycle time is over: such an
adapter drains, which means that it takes no new requests and is unloaded when the last running one that uses it ends. A
resource whose unload was requested is unloaded as soon as no request needs it, even if no other needs its slot.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from router.request import ADAPTER, GRAMMAR, LoadableResource
from router.scheduler.sequence import Sequence
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import LoadResource, ResourceCommand, UnloadResource
from router.scheduler.waiting_queue import FairShares, WaitingQueue

MAX_IDLE_GRAMMARS = 32
# An adapter that no request has started with since it was loaded stays for this much longer, or its load would be
# wasted. If it is unused even then, its requests are suspended (their clients do not read) or no request has room.
UNUSED_GRACE_SECONDS = 10.0


class ResourceState(Enum):
    """State of an adapter or grammar on the shards."""

    LOADING = auto()
    LOADED = auto()
    DRAINING = auto()  # no request may start with it; unloaded once no running one uses it
    UNLOADING = auto()


# Shown to users.
UNLOADED_STATE, LOADED_STATE, UNLOADING_STATE = "unloaded", "loaded", "unloading"
STATE_NAMES = {ResourceState.LOADING: "loading", ResourceState.LOADED: LOADED_STATE,
               ResourceState.DRAINING: UNLOADING_STATE, ResourceState.UNLOADING: UNLOADING_STATE}


@dataclass(slots=True, eq=False)
class CachedResource:
    """An adapter or grammar that the shards load, hold or unload, with its state."""

    resource: LoadableResource
    state: ResourceState
    state_changed_at: float
    was_used: bool = False  # whether a request has started with it since it was loaded


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """State of an adapter as shown to users, and how many unfinished requests need it."""

    state: str
    num_users: int  # unfinished requests that need it


@dataclass(slots=True, eq=False, repr=False)
class LoadableResourceCache:
    """State of each resource on the shards, and the loads and unloads to be done.

    It only decides: the router's AdapterGrammarLoader sends them, and its AdapterGrammarController reports the results.
    """

    _settings: SchedulerSettings
    _queue: WaitingQueue
    _fair_shares: FairShares
    available: set[LoadableResource]  # on every shard, and open to new sequences; only this class changes it
    _cached: dict[LoadableResource, CachedResource] = field(default_factory=dict)
    _num_users: dict[LoadableResource, int] = field(default_factory=dict)  # unfinished sequences that need it, if any
    # Available but needed by no sequence, least recently used first.
    _idle_by_kind: dict[str, OrderedDict[LoadableResource, None]] = field(
        default_factory=lambda: {ADAPTER: OrderedDict(), GRAMMAR: OrderedDict()})
    _draining: dict[LoadableResource, None] = field(default_factory=dict)  # in the order in which draining began
    # To be unloaded once no unfinished sequence needs them.
    _requested_unloads: dict[LoadableResource, None] = field(default_factory=dict)
    max_adapter_bytes: int = 0  # how many bytes of adapters fit on a shard
    was_ever_needed: bool = False  # whether any resource was ever needed or loaded; until then there is nothing to plan
    # Not yet returned by `Scheduler.take_resource_commands`.
    pending_commands: list[ResourceCommand] = field(default_factory=list)
    wake_at: float | None = None  # when the next adapter may be evicted, if room is needed

    # -- demand

    def add_sequence(self, sequence: Sequence) -> None:
        for resource in sequence.request.needed_resources:
            self.was_ever_needed = True
            self._num_users[resource] = self._num_users.get(resource, 0) + 1
            self._requested_unloads.pop(resource, None)
            self._idle_by_kind[resource.kind].pop(resource, None)

    def mark_used(self, sequence: Sequence) -> None:
        for resource in sequence.request.needed_resources:
            self._cached[resource].was_used = True

    def remove_sequence(self, sequence: Sequence) -> None:
        for resource in sequence.request.needed_resources:
            self._num_users[resource] -= 1
            if not self._num_users[resource]:
                del self._num_users[resource]
                if resource in self.available:
                    self._idle_by_kind[resource.kind][resource] = None
                elif resource not in self._cached:
                    self._requested_unloads.pop(resource, None)

    def request_resource_load(self, resource: LoadableResource) -> None:
        """Load the resource even if no request needs it."""
        self.was_ever_needed = True
        self._requested_unloads.pop(resource, None)
        if resource not in self.available:
            self._queue.request_resource_load(resource)

    def request_resource_unload(self, resource: LoadableResource) -> None:
        """Unload the resource once no unfinished sequence needs it, unless it is pinned.

        This takes back a `request_resource_load`. A later one, or a new sequence that needs the resource, cancels the
        unload.
        """
        self._queue.cancel_load_request(resource)
        if not resource.is_pinned and (resource in self._cached or resource in self._num_users):
            self._requested_unloads[resource] = None

    @property
    def adapter_states(self) -> dict[LoadableResource, AdapterStatus]:
        """State of each adapter that is loaded, loading or unloading, or needed by a request."""
        states = {resource: STATE_NAMES[cached.state] for resource, cached in self._cached.items()}
        known = dict.fromkeys(self._num_users, UNLOADED_STATE) | states
        return {resource: AdapterStatus(state, self._num_users.get(resource, 0)) for resource, state in known.items()
                if resource.kind == ADAPTER}

    def why_never_fits(self, resource: LoadableResource) -> str:
        """Return why the resource can never be loaded, or an empty string if it can."""
        if resource.kind != ADAPTER or resource in self._cached:
            return ""
        pinned = [cached.resource for cached in self._cached_adapters() if cached.resource.is_pinned]
        free_bytes = self.max_adapter_bytes - sum(other.max_bytes for other in pinned)
        if resource.max_bytes > free_bytes:
            return (f"the adapter takes {resource.max_bytes:,} bytes of memory, and there are {free_bytes:,} for "
                    f"adapters that come and go (--adapter-memory-fraction)")
        if len(pinned) >= self._settings.max_active_adapters:
            return (f"every place is taken by an adapter that stays (--max-active-adapters "
                    f"{self._settings.max_active_adapters})")
        return ""

    # -- loading and unloading

    def record_loaded(self, resource: LoadableResource, now: float) -> None:
        """Record that every rank has loaded the resource, even if it was not requested here."""
        self.was_ever_needed = True
        self._cached[resource] = CachedResource(resource, ResourceState.LOADED, now)
        self._make_available(resource, now)

    def record_unloaded(self, resource: LoadableResource, now: float) -> None:
        """Record that the resource is unloaded or unusable."""
        if self._cached.pop(resource, None) is not None:
            self._make_unavailable(resource, now)
            self._draining.pop(resource, None)
            if resource not in self._num_users:
                self._requested_unloads.pop(resource, None)

    def record_shard_loss(self, now: float, *, lost_all: bool) -> None:
        """Forget the loads and unloads in progress, or all resources; what sequences need is loaded again."""
        for cached in [*self._cached.values()]:
            if lost_all or cached.state in {ResourceState.LOADING, ResourceState.UNLOADING}:
                self.record_unloaded(cached.resource, now)
        self.pending_commands.clear()
        self.wake_at = None

    def plan_loads_and_unloads(self, now: float, find_resources_in_use: Callable[[], set[LoadableResource]]) -> None:
        """Plan loads and unloads. `find_resources_in_use` returns those of running sequences and steps in flight."""
        self.wake_at = None
        if self._queue.set_aside_by_resource:
            to_load = self._resources_to_load()
            adapters = [resource for resource in to_load if resource.kind == ADAPTER]
            # Draining stops unless the unload was requested, or another adapter needs an adapter's room.
            for resource in [*self._draining]:
                if resource not in self._requested_unloads and not (adapters and resource.kind == ADAPTER):
                    del self._draining[resource]
                    self._cached[resource].state = ResourceState.LOADED
                    self._make_available(resource, now)
            if adapters:
                self._make_room_for_adapters(adapters, now)
            if to_load:
                self._start_loads(to_load, now)
        while len(self._idle_by_kind[GRAMMAR]) > MAX_IDLE_GRAMMARS:
            self._start_draining(self._cached[next(iter(self._idle_by_kind[GRAMMAR]))], now)
        for resource in [resource for resource in self._requested_unloads
                         if resource in self._idle_by_kind[resource.kind]]:
            self._start_draining(self._cached[resource], now)
        in_use = find_resources_in_use() if self._draining else set()
        for resource in [resource for resource in self._draining if resource not in in_use]:
            del self._draining[resource]
            self._cached[resource] = CachedResource(resource, ResourceState.UNLOADING, now)
            self.pending_commands.append(UnloadResource(resource))

    # -- internals

    def _cached_adapters(self) -> list[CachedResource]:
        return [cached for resource, cached in self._cached.items() if resource.kind == ADAPTER]

    def _resources_to_load(self) -> list[LoadableResource]:
        """Return the awaited resources to load, longest awaited first, or those of the least served tenant."""
        to_load = [resource for resource in self._queue.set_aside_by_resource if resource not in self._cached]
        if not self._fair_shares.has_several_tenants or len(to_load) < 2:
            return to_load
        tenants = {resource: {s.request.tenant.name for s in self._queue.set_aside_by_resource[resource]}
                   for resource in to_load}
        order = self._fair_shares.sort_tenants(set[str]().union(*tenants.values()))
        return sorted(to_load, key=lambda resource: min(map(order.index, tenants[resource]), default=len(order)))

    def _make_room_for_adapters(self, to_load: list[LoadableResource], now: float) -> None:
        """Drain adapters to make room for those to be loaded, in order, as long as one may be evicted."""
        retained = [r for r in self._cached_adapters() if r.state in (ResourceState.LOADING, ResourceState.LOADED)]
        num_free_slots = self._settings.max_active_adapters - len(retained)
        free_bytes = self.max_adapter_bytes - sum(cached.resource.max_bytes for cached in retained)
        evictable = self._evictable_adapters(retained, now)
        for resource in to_load:
            while num_free_slots < 1 or free_bytes < resource.max_bytes:
                evicted = next(evictable, None)
                if evicted is None:
                    return
                self._start_draining(evicted, now)
                num_free_slots, free_bytes = num_free_slots + 1, free_bytes + evicted.resource.max_bytes
            num_free_slots, free_bytes = num_free_slots - 1, free_bytes - resource.max_bytes

    def _evictable_adapters(self, retained: list[CachedResource], now: float) -> Iterator[CachedResource]:
        """Yield the adapters that may be evicted now, in order; set `wake_at` to the time of the next one."""
        loaded = [r for r in retained if r.state is ResourceState.LOADED and not r.resource.is_pinned]
        idle_order = {resource: index for index, resource in enumerate(self._idle_by_kind[ADAPTER])}
        yield from sorted((r for r in loaded if r.resource in idle_order), key=lambda r: idle_order[r.resource])
        cycle_seconds = self._settings.adapter_cycle_seconds
        needed = [(r.state_changed_at + cycle_seconds + (0.0 if r.was_used else UNUSED_GRACE_SECONDS), r)
                  for r in loaded if r.resource not in idle_order]
        for evictable_at, cached in sorted(needed, key=lambda pair: pair[0]):
            if now < evictable_at:
                self.wake_at = evictable_at
                return
            yield cached

    def _start_loads(self, to_load: list[LoadableResource], now: float) -> None:
        """Load as many as fit now; the first adapter that does not fit and all adapters after it wait."""
        cached_adapters = self._cached_adapters()
        num_free_slots = self._settings.max_active_adapters - len(cached_adapters)
        free_bytes = self.max_adapter_bytes - sum(cached.resource.max_bytes for cached in cached_adapters)
        for resource in to_load:
            if resource.kind == ADAPTER:
                num_free_slots, free_bytes = num_free_slots - 1, free_bytes - resource.max_bytes
                if num_free_slots < 0 or free_bytes < 0:
                    continue
            self._cached[resource] = CachedResource(resource, ResourceState.LOADING, now)
            self.pending_commands.append(LoadResource(resource))

    def _start_draining(self, cached: CachedResource, now: float) -> None:
        cached.state = ResourceState.DRAINING
        self._draining[cached.resource] = None
        self._make_unavailable(cached.resource, now)

    def _make_available(self, resource: LoadableResource, now: float) -> None:
        self.available.add(resource)
        if resource not in self._num_users:
            self._idle_by_kind[resource.kind][resource] = None
        self._queue.release_set_aside_sequences(resource, now)

    def _make_unavailable(self, resource: LoadableResource, now: float) -> None:
        if resource in self.available:
            self.available.remove(resource)
            self._idle_by_kind[resource.kind].pop(resource, None)
            self._queue.set_aside_sequences(resource, now)
