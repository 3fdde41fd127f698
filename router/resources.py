"""Adapters and grammars that requests need: a number for each, loaded on every rank while somebody needs it.

What was needed stays loaded for a while, the last of them longest. Shards that are new load again what is needed. Knows
nothing of what a source says, nor of requests: who needs something calls `hold`, and `release` when it is over.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from router import wire
from router.errors import Overloaded
from router.meeting import Meeting
from router.request import Resource
from router.shards import ShardsLost

MOST_UNUSED = 32
now = time.monotonic

# Hears that a resource is on every rank, or else why it is not any more.
OnChange = Callable[[Resource, str], None]


class Loader(Protocol):
    """All ranks, as far as they load and unload. Either returns why some rank did not, or nothing."""

    async def load(self, request: Any) -> str: ...

    async def unload(self, request: Any) -> str: ...


class Presence(Enum):
    ABSENT = auto()
    LOADING = auto()
    PRESENT = auto()


@dataclass(slots=True)
class Entry:
    resource: Resource
    source: str
    num_users: int = 0
    unused_since: float = 0.0
    presence: Presence = Presence.ABSENT


class Resources:
    def __init__(self, shards: Loader, on_change: OnChange, oldest_step: Callable[[], float]) -> None:
        """`oldest_step` says when the oldest step that is still under way was sent."""
        self._shards = shards
        self._on_change = on_change
        self._oldest_step = oldest_step
        self._numbers: dict[str, int] = {}  # the highest of each kind
        self._epoch: int | None = None
        self._known: dict[tuple[str, str], Entry] = {}
        self._entries: dict[Resource, Entry] = {}
        self._unused: OrderedDict[Resource, Entry] = OrderedDict()  # the one that was needed last at the end
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, kind: str, source: str) -> Resource:
        """The same for the same source, as long as it is known. `hold` follows at once."""
        entry = self._known.get((kind, source))
        if entry is None:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            entry = Entry(Resource(kind, number), source)
            self._known[kind, source] = self._entries[entry.resource] = entry
            self._unused[entry.resource] = entry
            self._forget_some()
        return entry.resource

    def hold(self, needs: Collection[Resource]) -> None:
        """Somebody needs them. Raises Overloaded when too many others came since `of`."""
        for need in needs:
            if need not in self._entries:
                raise Overloaded(f"too many others asked for a {need.kind} at the same time")
        for need in needs:
            entry = self._entries[need]
            self._unused.pop(need, None)
            entry.num_users += 1
            self._load_if_absent(entry)

    def release(self, needs: Iterable[Resource]) -> None:
        for need in needs:
            entry = self._entries[need]
            entry.num_users -= 1
            if not entry.num_users:
                entry.unused_since = now()
                self._unused[need] = entry
        self._forget_some()

    def lost(self, *, everything: bool) -> None:
        """The epoch is over. `everything`: what was loaded is gone with the shards."""
        self._epoch = None
        for entry in self._entries.values():
            if everything or entry.presence is Presence.LOADING:
                entry.presence = Presence.ABSENT

    async def met(self, meeting: Meeting) -> None:
        """The shards are there. What should be present is, afterwards; what others want is on its way."""
        self._epoch = meeting.epoch
        for stranger in meeting.leftovers - self._entries.keys():
            self._numbers[stranger.kind] = max(self._numbers.get(stranger.kind, 0), stranger.id)
            self._start(self._unload(stranger))
        for entry in [*self._entries.values()]:
            if entry.presence is Presence.PRESENT and entry.resource not in meeting.loaded:
                await self._load(entry, meeting.epoch)
            elif entry.num_users:
                self._load_if_absent(entry)

    async def close(self) -> None:
        self._epoch = None
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the inside

    def _load_if_absent(self, entry: Entry) -> None:
        if entry.presence is Presence.ABSENT and self._epoch is not None:
            entry.presence = Presence.LOADING
            self._start(self._load(entry, self._epoch))

    async def _load(self, entry: Entry, epoch: int) -> None:
        try:
            reason = await self._shards.load(wire.load_request(entry.resource, entry.source, epoch))
        except ShardsLost:
            return  # the engine hears of it, too, and calls `lost`
        if epoch != self._epoch:
            return  # whatever it says, it is asked for again
        entry.presence = Presence.ABSENT if reason else Presence.PRESENT
        if reason:
            self._start(self._unload(entry.resource))  # from the ranks that have it
        self._on_change(entry.resource, reason)

    async def _unload(self, resource: Resource) -> None:
        """Who does not have it says so, which is no matter."""
        if self._epoch is not None:
            with suppress(ShardsLost):
                await self._shards.unload(wire.unload_request(resource, self._epoch))

    def _forget_some(self) -> None:
        """A step that used it may still be under way; then it is forgotten later."""
        oldest_step = self._oldest_step()
        for entry in [*self._unused.values()][:max(0, len(self._unused) - MOST_UNUSED)]:
            if entry.presence is Presence.ABSENT or (
                    entry.presence is Presence.PRESENT and entry.unused_since < oldest_step):
                self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        resource = entry.resource
        del self._unused[resource], self._entries[resource], self._known[resource.kind, entry.source]
        if entry.presence is Presence.PRESENT:
            self._on_change(resource, "it was unloaded")
            if self._epoch is not None:
                self._start(self._unload(resource))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
