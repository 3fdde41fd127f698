"""Loader of adapters and grammars: numbers them, and loads and unloads them on every rank.

The scheduler decides what to load and unload, and gets the results. Restarted shards get everything again that should
be loaded.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from router.request import ADAPTER, Resource
from router.scheduler.plan import Bring, Move
from router.shards import encode
from router.shards.failures import ShardsLost
from router.shards.handshake import Meeting

MOST_COUNTED = 4096  # adapters whose number of loads is kept
now = time.monotonic


class Loader(Protocol):
    """Loads and unloads on all ranks. Both methods return why some rank failed, or an empty string."""

    async def load(self, request: Any) -> str: ...

    async def unload(self, request: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Told:
    """Callbacks for the results: a resource was loaded, could not be loaded (with the reason), or was unloaded."""

    here: Callable[[Resource], None]
    failed: Callable[[Resource, str], None]
    removed: Callable[[Resource], None]
    took: Callable[[Resource, float, str], None] = lambda *_: None  # seconds of a load, and why it failed, if it did


class Resources:
    """Resources by kind and source, and which of them the shards have loaded."""

    def __init__(self, shards: Loader, told: Told) -> None:
        self._shards = shards
        self._told = told
        self._numbers: dict[str, int] = {}  # highest number of each kind
        self._epoch: int | None = None
        # Weak references: a source keeps its number for as long as its resource is in use.
        self._known: WeakValueDictionary[tuple[str, str], Resource] = WeakValueDictionary()
        self._sources: WeakKeyDictionary[Resource, str] = WeakKeyDictionary()
        self._here: dict[Resource, None] = {}  # loaded, as far as the scheduler knows
        self._kept: dict[Resource, None] = {}  # never unloaded
        self._loads: OrderedDict[str, int] = OrderedDict()  # number of loads by adapter source, the latest at the end
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, kind: str, source: str, takes: int = 0, *, stays: bool = False) -> Resource:
        """Return the resource of a source: the same object for as long as it is in use."""
        resource = self._known.get((kind, source))
        if resource is None:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            resource = Resource(kind, number, takes, stays)
            self._known[kind, source] = resource
            self._sources[resource] = source
        return resource

    def knows(self, kind: str, source: str) -> bool:
        """Return whether a request needs the resource or the shards hold it."""
        return (kind, source) in self._known

    def known(self, kind: str) -> Iterator[str]:
        return (source for of, source in self._known if of == kind)

    def num_loads(self, source: str) -> int:
        """Return how often this source's adapter was loaded; 0 if it is not among the MOST_COUNTED loaded last."""
        return self._loads.get(source, 0)

    async def keep(self, resource: Resource) -> str:
        """Load a resource for good; return why that failed, or an empty string. Raises ShardsLost."""
        assert self._epoch is not None
        reason = await self._load(resource, self._epoch)
        if not reason:
            self._kept[resource] = None
            self._is_here(resource)
        return reason

    def carry_out(self, moves: Iterable[Move]) -> None:
        assert self._epoch is not None
        for move in moves:
            work = self._bring if isinstance(move, Bring) else self._remove
            self._start(work(move.resource, self._epoch))

    def lost(self, *, everything: bool) -> None:
        """End the epoch. `everything`: the shards have also lost the loaded resources."""
        self._epoch = None
        if everything:
            self._here.clear()

    async def met(self, meeting: Meeting) -> None:
        """Restore the resources after a handshake: unload those that should not be loaded, load missing ones."""
        self._epoch = meeting.epoch
        strangers = meeting.leftovers - self._here.keys() - self._kept.keys()
        for stranger in strangers:
            self._numbers[stranger.kind] = max(self._numbers.get(stranger.kind, 0), stranger.id)
        await asyncio.gather(*map(self._unload, strangers))
        for resource in [*self._here, *(kept for kept in self._kept if kept not in self._here)]:
            if resource not in meeting.loaded:
                await self._bring(resource, meeting.epoch)
            elif resource not in self._here:
                self._is_here(resource)

    async def close(self) -> None:
        self._epoch = None
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- internals

    async def _load(self, resource: Resource, epoch: int) -> str:
        began, source = now(), self._sources[resource]
        reason = await self._shards.load(encode.load_request(resource, source, epoch))
        self._told.took(resource, now() - began, reason)
        if not reason and resource.kind == ADAPTER:
            self._loads[source] = self._loads.pop(source, 0) + 1
            while len(self._loads) > MOST_COUNTED:
                self._loads.popitem(last=False)
        return reason

    async def _bring(self, resource: Resource, epoch: int) -> None:
        try:
            reason = await self._load(resource, epoch)
        except ShardsLost:
            return  # the engine gets the loss as well, and calls `lost`
        if reason:
            await self._unload(resource)  # from the ranks that have it
        if epoch != self._epoch:
            return  # whatever the result, the resource is loaded again in the new epoch
        if reason:
            self._here.pop(resource, None)
            self._told.failed(resource, reason)
        else:
            self._is_here(resource)

    async def _remove(self, resource: Resource, epoch: int) -> None:
        del self._here[resource]
        await self._unload(resource)
        if epoch == self._epoch:
            self._told.removed(resource)

    async def _unload(self, resource: Resource) -> None:
        """Unload on all ranks. Errors are ignored: a rank that does not hold the resource returns one."""
        if self._epoch is not None:
            with suppress(ShardsLost):
                await self._shards.unload(encode.unload_request(resource, self._epoch))

    def _is_here(self, resource: Resource) -> None:
        self._here[resource] = None
        self._told.here(resource)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
