"""Cache of adapters and grammars loaded on the shards: decides what to load and what to evict.

Adapters are limited in number and in bytes; grammars always fit. Loads are FIFO by first demand (with several tenants,
those of the tenant that has received least go first), so each awaited resource gets its turn. To make room, adapters
that no request needs are evicted first (LRU), then those loaded longest whose cycle time is over: such an adapter takes
no new requests and is unloaded when the last running one that uses it ends. A dropped resource is unloaded as soon as
no request needs it, even if its room is not needed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from router.request import ADAPTER, GRAMMAR, Resource
from router.scheduler.fairness import Shares
from router.scheduler.plan import Bring, Move, Remove
from router.scheduler.sequence import Sequence
from router.scheduler.settings import Policy
from router.scheduler.timeline import Cause
from router.scheduler.waiting_queue import Queue

MOST_IDLE_GRAMMARS = 32
# An adapter that no request has started with since it was loaded stays for this much longer, or its load would be
# wasted. If it is unused even then, its requests are held (their clients do not read) or no request has room.
UNUSED_SECONDS = 10.0


class Presence(Enum):
    COMING = auto()
    HERE = auto()
    CLOSED = auto()  # no request may start with it; unloaded once no running one uses it
    LEAVING = auto()


STAYING = frozenset({Presence.COMING, Presence.HERE})
# Shown to users.
ABSENT = "absent"
STATES = {Presence.COMING: "coming", Presence.HERE: "here", Presence.CLOSED: "leaving", Presence.LEAVING: "leaving"}


@dataclass(slots=True, eq=False)
class Resident:
    resource: Resource
    presence: Presence
    since: float
    is_used: bool = False  # whether a request has started with it since it was loaded


@dataclass(frozen=True, slots=True)
class Standing:
    """Status of an adapter."""

    state: str
    num_users: int  # unfinished requests that need it


class Residents:
    """State of each resource on the shards, and the loads and unloads to be done."""

    def __init__(self, policy: Policy, queue: Queue, shares: Shares, present: set[Resource]) -> None:
        """Create an empty cache. `present` has the resources that new sequences may use; only this class changes it."""
        self._policy = policy
        self._queue = queue
        self._shares = shares
        self._present = present
        self._residents: dict[Resource, Resident] = {}
        self._users: dict[Resource, int] = {}  # number of unfinished sequences that need it, if not 0
        # Present but needed by no sequence, least recently used first.
        self._idle: dict[str, OrderedDict[Resource, None]] = {kind: OrderedDict() for kind in (ADAPTER, GRAMMAR)}
        self._closed: dict[Resource, None] = {}  # in the order in which they were closed
        self._dropped: dict[Resource, None] = {}  # to be unloaded once no unfinished sequence needs them
        self._most_bytes = 0
        self.moves: list[Move] = []  # not yet returned by `Scheduler.moves`
        self.wake_at: float | None = None  # when the next adapter may be evicted, if room is needed

    def start_empty(self, most_bytes: int) -> None:
        """Set how many bytes of adapters fit on a shard."""
        self._most_bytes = most_bytes

    # -- demand

    def enter(self, sequence: Sequence) -> None:
        for need in sequence.request.needs:
            self._users[need] = self._users.get(need, 0) + 1
            self._dropped.pop(need, None)
            self._idle[need.kind].pop(need, None)

    def started(self, sequence: Sequence) -> None:
        for need in sequence.request.needs:
            self._residents[need].is_used = True

    def leave(self, sequence: Sequence) -> None:
        for need in sequence.request.needs:
            self._users[need] -= 1
            if not self._users[need]:
                del self._users[need]
                if need in self._present:
                    self._idle[need.kind][need] = None
                elif need not in self._residents:
                    self._dropped.pop(need, None)

    def want(self, resource: Resource) -> None:
        """Load the resource even if no request needs it."""
        self._dropped.pop(resource, None)
        if resource not in self._present:
            self._queue.wish(resource)

    def drop(self, resource: Resource) -> None:
        """Unload the resource once no unfinished sequence needs it, unless it is one that `stays`.

        This takes back a `want`; a later `want`, or a new sequence that needs the resource, cancels it.
        """
        self._queue.unwish(resource)
        if not resource.stays and (resource in self._residents or resource in self._users):
            self._dropped[resource] = None

    @property
    def adapters(self) -> dict[Resource, Standing]:
        """Status of each adapter that is loaded, loading or unloading, or needed by a request."""
        states = {resource: STATES[resident.presence] for resource, resident in self._residents.items()}
        known = dict.fromkeys(self._users, ABSENT) | states
        return {resource: Standing(state, self._users.get(resource, 0)) for resource, state in known.items()
                if resource.kind == ADAPTER}

    def misfit(self, resource: Resource) -> str:
        """Return why the resource can never be loaded, or an empty string if it can."""
        if resource.kind != ADAPTER or resource in self._residents:
            return ""
        stay = [resident.resource for resident in self._adapters() if resident.resource.stays]
        room = self._most_bytes - sum(other.takes for other in stay)
        if resource.takes > room:
            return (f"the adapter takes {resource.takes:,} bytes of memory, and there are {room:,} for adapters that "
                    f"come and go (--adapter-memory-fraction)")
        if len(stay) >= self._policy.max_active_adapters:
            return (f"every place is taken by an adapter that stays (--max-active-adapters "
                    f"{self._policy.max_active_adapters})")
        return ""

    # -- loading and unloading

    def came(self, resource: Resource, now: float) -> None:
        """Record that every rank has loaded the resource, even if it was not requested here."""
        self._residents[resource] = Resident(resource, Presence.HERE, now)
        self._open(resource, now)

    def gone(self, resource: Resource, now: float) -> None:
        """Record that the resource is unloaded or unusable."""
        if self._residents.pop(resource, None) is not None:
            self._shut(resource, now)
            self._closed.pop(resource, None)
            if resource not in self._users:
                self._dropped.pop(resource, None)

    def lost(self, now: float, *, everything: bool) -> None:
        """Forget the loads and unloads in progress after a loss of the shards; with `everything`, all resources.

        `arrange` loads again what sequences need.
        """
        for resident in [*self._residents.values()]:
            if everything or resident.presence in {Presence.COMING, Presence.LEAVING}:
                self.gone(resident.resource, now)
        self.moves.clear()
        self.wake_at = None

    def arrange(self, now: float, used: Callable[[], set[Resource]]) -> None:
        """Plan loads and unloads. `used` returns the resources of running sequences and of steps in flight."""
        self.wake_at = None
        if self._queue.aside:
            wanted = self._wanted()
            adapters = [resource for resource in wanted if resource.kind == ADAPTER]
            self._reopen(now, adapters=not adapters)
            if adapters:
                self._make_room(adapters, now)
            if wanted:
                self._bring(wanted, now)
        while len(self._idle[GRAMMAR]) > MOST_IDLE_GRAMMARS:
            self._close(self._residents[next(iter(self._idle[GRAMMAR]))], now)
        for resource in [resource for resource in self._dropped if resource in self._idle[resource.kind]]:
            self._close(self._residents[resource], now)
        if self._closed:
            self._send_away(used(), now)

    # -- internals

    def _adapters(self) -> list[Resident]:
        return [resident for resource, resident in self._residents.items() if resource.kind == ADAPTER]

    def _wanted(self) -> list[Resource]:
        """Return the awaited resources that must be loaded, longest awaited first.

        If several tenants compete, those of the tenant that has received least go first.
        """
        wanted = [resource for resource in self._queue.aside if resource not in self._residents]
        if not self._shares.several or len(wanted) < 2:
            return wanted
        tenants = {resource: {s.request.tenant.name for s in self._queue.aside[resource]} for resource in wanted}
        order = self._shares.order(set[str]().union(*tenants.values()))
        return sorted(wanted, key=lambda resource: min(map(order.index, tenants[resource]), default=len(order)))

    def _make_room(self, wanted: list[Resource], now: float) -> None:
        """Close adapters to make room for the wanted ones, in order, as long as one may be evicted."""
        staying = [resident for resident in self._adapters() if resident.presence in STAYING]
        places = self._policy.max_active_adapters - len(staying)
        room = self._most_bytes - sum(resident.resource.takes for resident in staying)
        leavers = self._leavers(staying, now)
        for resource in wanted:
            while places < 1 or room < resource.takes:
                leaver = next(leavers, None)
                if leaver is None:
                    return
                self._close(leaver, now)
                places, room = places + 1, room + leaver.resource.takes
            places, room = places - 1, room - resource.takes

    def _leavers(self, staying: list[Resident], now: float) -> Iterator[Resident]:
        """Yield the adapters that may be evicted now, in order; set `wake_at` to the time of the next one."""
        here = [r for r in staying if r.presence is Presence.HERE and not r.resource.stays]
        places = {resource: place for place, resource in enumerate(self._idle[ADAPTER])}
        yield from sorted((r for r in here if r.resource in places), key=lambda r: places[r.resource])
        needed = [(self._due(resident), resident) for resident in here if resident.resource not in places]
        for due, resident in sorted(needed, key=lambda pair: pair[0]):
            if now < due:
                self.wake_at = due
                return
            yield resident

    def _due(self, resident: Resident) -> float:
        """Return when the adapter's cycle time is over."""
        due = resident.since + self._policy.adapter_cycle_seconds
        return due if resident.is_used else due + UNUSED_SECONDS

    def _bring(self, wanted: list[Resource], now: float) -> None:
        """Load as many as fit now; the first adapter that does not fit and all adapters after it wait."""
        here = self._adapters()
        places = self._policy.max_active_adapters - len(here)
        room = self._most_bytes - sum(resident.resource.takes for resident in here)
        for resource in wanted:
            if resource.kind == ADAPTER:
                places, room = places - 1, room - resource.takes
                if places < 0 or room < 0:
                    continue
            self._residents[resource] = Resident(resource, Presence.COMING, now)
            self.moves.append(Bring(resource))

    def _send_away(self, used: set[Resource], now: float) -> None:
        for resource in [*self._closed]:
            if resource not in used:
                del self._closed[resource]
                self._residents[resource] = Resident(resource, Presence.LEAVING, now)
                self.moves.append(Remove(resource))

    def _close(self, resident: Resident, now: float) -> None:
        resident.presence = Presence.CLOSED
        self._closed[resident.resource] = None
        self._shut(resident.resource, now)

    def _reopen(self, now: float, *, adapters: bool) -> None:
        """Reopen the closed resources that were not dropped: grammars, and with `adapters` adapters too.

        Adapters are reopened only if no other one needs their room.
        """
        for resource in [*self._closed]:
            if resource not in self._dropped and (adapters or resource.kind != ADAPTER):
                del self._closed[resource]
                self._residents[resource].presence = Presence.HERE
                self._open(resource, now)

    def _open(self, resource: Resource, now: float) -> None:
        self._present.add(resource)
        if resource not in self._users:
            self._idle[resource.kind][resource] = None
        for sequence in self._queue.came(resource):
            sequence.story.turn(waiting_for(sequence), now)

    def _shut(self, resource: Resource, now: float) -> None:
        if resource in self._present:
            self._present.remove(resource)
            self._idle[resource.kind].pop(resource, None)
            for sequence in self._queue.left(resource):
                sequence.story.turn(waiting_for(sequence), now)


def waiting_for(sequence: Sequence) -> Cause:
    """Return what a waiting sequence waits for: its client, a resource, or else its turn."""
    if sequence.held:
        return Cause.READER
    return Cause.QUEUE if sequence.lacks is None else Cause(sequence.lacks.kind)
