"""Adapters and grammars as the shards know them: a number for each, and how they come there and leave.

What comes and what leaves the core decides; here it is carried out, on every rank, and told when it is done. Shards
that are new get again what should be there. Knows nothing of what a source says, nor of requests.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from router import wire
from router.losses import ShardsLost
from router.meeting import Meeting
from router.messages import Bring, Move
from router.request import ADAPTER, Resource

MOST_COUNTED = 4096  # adapters whose loads are remembered
now = time.monotonic


class Loader(Protocol):
    """All ranks, as far as they load and unload. Either returns why some rank did not, or nothing."""

    async def load(self, request: Any) -> str: ...

    async def unload(self, request: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Told:
    """Who hears what became of a resource: it is there, it is not to be had and why, it is gone."""

    here: Callable[[Resource], None]
    failed: Callable[[Resource, str], None]
    removed: Callable[[Resource], None]
    took: Callable[[Resource, float, str], None] = lambda *_: None  # seconds to load it, and why it was not, if so


class Resources:
    def __init__(self, shards: Loader, told: Told) -> None:
        self._shards = shards
        self._told = told
        self._numbers: dict[str, int] = {}  # the highest of each kind
        self._epoch: int | None = None
        # As long as anybody has the resource its number is not given to another source.
        self._known: WeakValueDictionary[tuple[str, str], Resource] = WeakValueDictionary()
        self._sources: WeakKeyDictionary[Resource, str] = WeakKeyDictionary()
        self._here: dict[Resource, None] = {}  # as the core knows it
        self._kept: dict[Resource, None] = {}  # what stays, whoever needs it
        self._loads: OrderedDict[str, int] = OrderedDict()  # of adapters, by source; those loaded last at the end
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, kind: str, source: str, takes: int = 0, *, stays: bool = False) -> Resource:
        """The same for the same source."""
        resource = self._known.get((kind, source))
        if resource is None:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            resource = Resource(kind, number, takes, stays)
            self._known[kind, source] = resource
            self._sources[resource] = source
        return resource

    def knows(self, kind: str, source: str) -> bool:
        """Whether somebody needs it, or it is on the shards."""
        return (kind, source) in self._known

    def known(self, kind: str) -> Iterator[str]:
        return (source for of, source in self._known if of == kind)

    def num_loads(self, source: str) -> int:
        """How often the adapter of this source came to the shards, as far as that is remembered."""
        return self._loads.get(source, 0)

    async def keep(self, resource: Resource) -> str:
        """Has it there from now on; returns why not, if so. Raises ShardsLost."""
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
        """The epoch is over. `everything`: what was loaded is gone with the shards."""
        self._epoch = None
        if everything:
            self._here.clear()

    async def met(self, meeting: Meeting) -> None:
        """The shards are there. What should be there is, afterwards, and nothing else."""
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

    # -- the inside

    async def _load(self, resource: Resource, epoch: int) -> str:
        began, source = now(), self._sources[resource]
        reason = await self._shards.load(wire.load_request(resource, source, epoch))
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
            return  # the engine hears of it, too, and calls `lost`
        if reason:
            await self._unload(resource)  # from the ranks that have it
        if epoch != self._epoch:
            return  # whatever it says, it is asked for again
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
        """Who does not have it says so, which is no matter."""
        if self._epoch is not None:
            with suppress(ShardsLost):
                await self._shards.unload(wire.unload_request(resource, self._epoch))

    def _is_here(self, resource: Resource) -> None:
        self._here[resource] = None
        self._told.here(resource)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
