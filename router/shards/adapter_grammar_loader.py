"""Loader of adapters and grammars: numbers them, and loads and unloads them on every rank."""

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from weakref import WeakKeyDictionary, WeakValueDictionary

from router.request import ADAPTER, LoadableResource
from router.scheduler.shard_messages import LoadResource, ResourceCommand
from router.shards.failures import ShardsLost
from router.shards.handshake import HandshakeResult
from router.shards.message_conversion import RESOURCE_KINDS
from router.shards.shard_group import ShardGroup
from shard.pb import shard_pb2 as pb

MAX_COUNTED_ADAPTERS = 4096  # adapters whose number of loads is kept
logger = logging.getLogger(__name__)
now = time.monotonic


class AdapterGrammarLoader:
    """Resources by kind and source, and which of them the shards have loaded. It sends the loads and unloads on which
    the scheduler has decided; restarted shards get everything again that should be loaded."""

    def __init__(self, shards: ShardGroup, on_load_ended: Callable[[LoadableResource, str], None],
                 on_unloaded: Callable[[LoadableResource], None],
                 on_load_timed: Callable[[LoadableResource, float, str], None]) -> None:
        """A load that failed ends with the reason, another one with ""; `on_load_timed` also gets its seconds."""
        self._shards = shards
        self._on_load_ended, self._on_unloaded, self._on_load_timed = on_load_ended, on_unloaded, on_load_timed
        self._last_ids: dict[str, int] = {}  # highest number of each kind
        self._epoch: int | None = None
        # Weak references: a source keeps its number for as long as its resource is in use.
        self._resources_by_source: WeakValueDictionary[tuple[str, str], LoadableResource] = WeakValueDictionary()
        self._sources: WeakKeyDictionary[LoadableResource, str] = WeakKeyDictionary()
        self._loaded: dict[LoadableResource, None] = {}  # loaded, as far as the scheduler knows
        self._pinned: dict[LoadableResource, None] = {}  # never unloaded
        self._load_counts: OrderedDict[str, int] = OrderedDict()  # by adapter source, the latest at the end
        self._tasks: set[asyncio.Task[None]] = set()

    def get_or_register(self, kind: str, source: str, max_bytes: int = 0, *,
                        is_pinned: bool = False) -> LoadableResource:
        """Return the resource of a source: the same object for as long as it is in use."""
        resource = self._resources_by_source.get((kind, source))
        if resource is None:
            resource_id = self._last_ids[kind] = self._last_ids.get(kind, 0) + 1
            resource = LoadableResource(kind, resource_id, max_bytes, is_pinned)
            self._resources_by_source[kind, source] = resource
            self._sources[resource] = source
        return resource

    def is_in_use(self, kind: str, source: str) -> bool:
        """Return whether a request needs the resource or the shards hold it."""
        return (kind, source) in self._resources_by_source

    def sources_in_use(self, kind: str) -> Iterator[str]:
        return (source for source_kind, source in self._resources_by_source if source_kind == kind)

    def count_past_loads(self, source: str) -> int:
        """Return how often an adapter was loaded; 0 if it is not among the MAX_COUNTED_ADAPTERS loaded last."""
        return self._load_counts.get(source, 0)

    async def load_permanently(self, resource: LoadableResource) -> str:
        """Load a resource for good; return why that failed, or an empty string. Raises ShardsLost."""
        assert self._epoch is not None
        reason = await self._load(resource, self._epoch)
        if not reason:
            self._pinned[resource] = None
            self._mark_loaded(resource)
        return reason

    def execute_commands(self, commands: Iterable[ResourceCommand]) -> None:
        assert self._epoch is not None
        for command in commands:
            execute_command = self._load_and_report if isinstance(command, LoadResource) else self._unload_and_report
            task = asyncio.create_task(execute_command(command.resource, self._epoch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def end_epoch(self, *, resources_lost: bool) -> None:
        """End the epoch. `resources_lost`: the shards have also lost the loaded resources."""
        self._epoch = None
        if resources_lost:
            self._loaded.clear()

    async def restore_after_handshake(self, handshake: HandshakeResult) -> None:
        """Restore the resources after a handshake: unload those that should not be loaded, load missing ones."""
        self._epoch = handshake.epoch
        unexpected = handshake.loaded_on_any_rank - self._loaded.keys() - self._pinned.keys()
        for resource in unexpected:
            self._last_ids[resource.kind] = max(self._last_ids.get(resource.kind, 0), resource.id)
        await asyncio.gather(*map(self._unload, unexpected))
        for resource in [*self._loaded, *(pinned for pinned in self._pinned if pinned not in self._loaded)]:
            if resource not in handshake.loaded_on_all_ranks:
                await self._load_and_report(resource, handshake.epoch)
            elif resource not in self._loaded:
                self._mark_loaded(resource)

    async def close(self) -> None:
        self._epoch = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self, resource: LoadableResource, epoch: int) -> str:
        started_at, source = now(), self._sources[resource]
        reason = await self._shards.load_or_unload(
            pb.LoadRequest(epoch=epoch, kind=RESOURCE_KINDS[resource.kind], id=resource.id, source=source))
        self._on_load_timed(resource, now() - started_at, reason)
        if not reason and resource.kind == ADAPTER:
            self._load_counts[source] = self._load_counts.pop(source, 0) + 1
            while len(self._load_counts) > MAX_COUNTED_ADAPTERS:
                self._load_counts.popitem(last=False)
        return reason

    async def _load_and_report(self, resource: LoadableResource, epoch: int) -> None:
        try:
            reason = await self._load(resource, epoch)
        except ShardsLost:
            return  # the engine gets the loss as well, and calls `end_epoch`
        if reason:
            await self._unload(resource)  # from the ranks that have it
        if epoch != self._epoch:
            return  # whatever the result, the resource is loaded again in the new epoch
        if reason:
            self._loaded.pop(resource, None)
            if (reason_for_clients := strip_adapter_folder(reason, self._sources[resource])) != reason:
                logger.warning("an adapter was not loaded: %s", reason)
            self._on_load_ended(resource, reason_for_clients)
        else:
            self._mark_loaded(resource)

    async def _unload_and_report(self, resource: LoadableResource, epoch: int) -> None:
        del self._loaded[resource]
        await self._unload(resource)
        if epoch == self._epoch:
            self._on_unloaded(resource)

    async def _unload(self, resource: LoadableResource) -> None:
        """Unload on all ranks. Errors are ignored: a rank that does not hold the resource returns one."""
        if self._epoch is not None:
            with suppress(ShardsLost):
                await self._shards.load_or_unload(
                    pb.UnloadRequest(epoch=self._epoch, kind=RESOURCE_KINDS[resource.kind], id=resource.id))

    def _mark_loaded(self, resource: LoadableResource) -> None:
        self._loaded[resource] = None
        self._on_load_ended(resource, "")


def strip_adapter_folder(reason: str, source: str) -> str:
    """Return a reason without the path of an adapter's folder, which clients must not see."""
    if not source.startswith("/"):
        return reason
    return re.sub(rf"{re.escape(source)}(?![\w.-])(/?)", lambda found: "" if found[1] else "its folder", reason)
