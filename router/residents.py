"""Which adapters and grammars are on the shards, and whose turn it is to come there.

What a waiting request needs comes there as soon as there is room. Grammars always have some; of adapters only so many
may be there at once, and so many bytes. Where there is no room adapters that nobody needs leave first, the longest
unused before all others, and then those that are there for longest, once they had their time: nobody starts with one
any more, and it leaves when those who run with it are over. What is waited for comes in the order in which that began,
so everything has its turn. What is dropped leaves as soon as nobody needs it, whoever wants its place. Knows nothing of
files, nor of how anything comes to a shard.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from router.messages import Bring, Move, Remove
from router.policy import Policy
from router.queue import Queue
from router.request import ADAPTER, GRAMMAR, Resource
from router.sequence import Sequence
from router.shares import Shares
from router.story import Cause

MOST_IDLE_GRAMMARS = 32
# An adapter with which nobody started, so that it would come for nothing, stays for so much longer. Then whoever needs
# it does not read, or there is no room for anybody.
UNUSED_SECONDS = 10.0


class Presence(Enum):
    COMING = auto()
    HERE = auto()
    CLOSED = auto()  # nobody starts with it, and it leaves when nobody runs with it
    LEAVING = auto()


STAYING = frozenset({Presence.COMING, Presence.HERE})
# For people.
ABSENT = "absent"
STATES = {Presence.COMING: "coming", Presence.HERE: "here", Presence.CLOSED: "leaving", Presence.LEAVING: "leaving"}


@dataclass(slots=True, eq=False)
class Resident:
    resource: Resource
    presence: Presence
    since: float
    is_used: bool = False  # somebody started with it, since it is here


@dataclass(frozen=True, slots=True)
class Standing:
    """How things are with an adapter."""

    state: str
    num_users: int  # requests in the house that need it


class Residents:
    def __init__(self, policy: Policy, queue: Queue, shares: Shares, present: set[Resource]) -> None:
        """`present` is what newcomers may use; it is changed here and nowhere else."""
        self._policy = policy
        self._queue = queue
        self._shares = shares
        self._present = present
        self._residents: dict[Resource, Resident] = {}
        self._users: dict[Resource, int] = {}  # sequences in the house that need it, if any do
        # Present, and nobody needs them; those used last at the end.
        self._idle: dict[str, OrderedDict[Resource, None]] = {kind: OrderedDict() for kind in (ADAPTER, GRAMMAR)}
        self._closed: dict[Resource, None] = {}  # in order
        self._dropped: dict[Resource, None] = {}  # should leave when nobody in the house needs them
        self._most_bytes = 0
        self.moves: list[Move] = []  # that nobody carried out yet
        self.wake_at: float | None = None  # when time alone makes room

    def start_empty(self, most_bytes: int) -> None:
        """So many bytes of adapters fit on a shard."""
        self._most_bytes = most_bytes

    # -- who needs what

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
        """It should come, though no request needs it."""
        self._dropped.pop(resource, None)
        if resource not in self._present:
            self._queue.wish(resource)

    def drop(self, resource: Resource) -> None:
        """Nobody should come for it any more. Who is in the house keeps it."""
        self._queue.unwish(resource)
        if not resource.stays and (resource in self._residents or resource in self._users):
            self._dropped[resource] = None

    @property
    def adapters(self) -> dict[Resource, Standing]:
        """Those that are on the shards, come there or leave, and others that somebody needs."""
        states = {resource: STATES[resident.presence] for resource, resident in self._residents.items()}
        known = dict.fromkeys(self._users, ABSENT) | states
        return {resource: Standing(state, self._users.get(resource, 0)) for resource, state in known.items()
                if resource.kind == ADAPTER}

    def misfit(self, resource: Resource) -> str:
        """Why it can never come to the shards, or nothing."""
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

    # -- what becomes of them

    def came(self, resource: Resource, now: float) -> None:
        """Every rank has it, whoever wished that."""
        self._residents[resource] = Resident(resource, Presence.HERE, now)
        self._open(resource, now)

    def gone(self, resource: Resource, now: float) -> None:
        """It is on no rank, or of no use there."""
        if self._residents.pop(resource, None) is not None:
            self._shut(resource, now)
            self._closed.pop(resource, None)
            if resource not in self._users:
                self._dropped.pop(resource, None)

    def lost(self, now: float, *, everything: bool) -> None:
        """What was on its way has to be asked for again; with `everything`, so has what was there."""
        for resident in [*self._residents.values()]:
            if everything or resident.presence in {Presence.COMING, Presence.LEAVING}:
                self.gone(resident.resource, now)
        self.moves.clear()
        self.wake_at = None

    def arrange(self, now: float, used: Callable[[], set[Resource]]) -> None:
        """Who comes next, and who leaves. `used` finds what those need who run, or whose steps are under way."""
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

    # -- the inside

    def _adapters(self) -> list[Resident]:
        return [resident for resource, resident in self._residents.items() if resource.kind == ADAPTER]

    def _wanted(self) -> list[Resource]:
        """What is waited for and not on its way, the longest first; but that of a tenant that got less before that of
        others."""
        wanted = [resource for resource in self._queue.aside if resource not in self._residents]
        if not self._shares.several or len(wanted) < 2:
            return wanted
        tenants = {resource: {s.request.tenant.name for s in self._queue.aside[resource]} for resource in wanted}
        order = self._shares.order(set[str]().union(*tenants.values()))
        return sorted(wanted, key=lambda resource: min(map(order.index, tenants[resource]), default=len(order)))

    def _make_room(self, wanted: list[Resource], now: float) -> None:
        """For one after the other, as far as somebody may leave."""
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
        """Who may leave now, in order; and notes when the next may."""
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
        """When it had its time."""
        due = resident.since + self._policy.adapter_cycle_seconds
        return due if resident.is_used else due + UNUSED_SECONDS

    def _bring(self, wanted: list[Resource], now: float) -> None:
        """As many as there is room for now, the first that does not fit and all behind it wait."""
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
        """What is waited for again, and what nobody else needs the room of."""
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
    """What somebody who waits waits for, besides its turn."""
    if sequence.held:
        return Cause.READER
    return Cause.QUEUE if sequence.lacks is None else Cause(sequence.lacks.kind)
