"""Connection between the scheduler and the shards for adapters and grammars."""

import asyncio
import time
from collections.abc import Callable

from router.errors import NotReady, make_not_ready_error
from router.request import ADAPTER, LoadableResource
from router.scheduler.events import SchedulerEvent
from router.scheduler.loadable_resource_cache import AdapterStatus
from router.scheduler.scheduler import Scheduler
from router.shards.adapter_grammar_loader import AdapterGrammarLoader
from router.shards.shard_group import ShardGroup
from router.telemetry.server_metrics import ServerMetrics

UNLOADED_WHILE_WAITING = "it was unloaded while this request waited for it"
now = time.monotonic


class AdapterGrammarController:
    """Passes the loads and unloads that the scheduler's LoadableResourceCache has decided on to the
    AdapterGrammarLoader, and the results to the scheduler, the metrics, and callers that wait for an adapter although
    no request needs it."""

    def __init__(self, shards: ShardGroup, on_events: Callable[[list[SchedulerEvent]], None],
                 wake_engine: Callable[[], None]) -> None:
        """`on_events` is called with the scheduler's events, `wake_engine` when there may be something to send."""
        self.loader = AdapterGrammarLoader(shards, self._on_load_ended, self._on_unloaded, self._on_load_timed)
        self._on_events = on_events
        self._wake_engine = wake_engine
        # Callers that wait for the same resource share a future; its result is why the load failed, or NotReady.
        self._load_waiters: dict[LoadableResource, asyncio.Future[str | NotReady]] = {}
        self._stop_reason = ""  # why nothing is loaded any more

    def attach_scheduler(self, scheduler: Scheduler, metrics: ServerMetrics) -> None:
        self._scheduler = scheduler
        self._adapter_metrics = metrics.adapters

    async def load(self, resource: LoadableResource) -> str:
        """Load a resource although no request needs it; return why that is not possible, or an empty string. A loss of
        the shards only delays the load, an unload ends the wait. Raises NotReady if the server stops."""
        if self._stop_reason:
            raise make_not_ready_error(self._stop_reason)
        if reason := self._scheduler.resource_cache.why_never_fits(resource):
            return reason
        self._scheduler.request_resource_load(resource, now())
        self._wake_engine()
        if resource in self._scheduler.resource_cache.available:
            return ""
        if resource not in self._load_waiters:
            self._load_waiters[resource] = asyncio.get_running_loop().create_future()
        result = await asyncio.shield(self._load_waiters[resource])  # a caller that leaves does not affect the others
        if isinstance(result, NotReady):
            raise result
        return result

    def request_resource_unload(self, resource: LoadableResource) -> None:
        """Unload a resource as soon as no unfinished request needs it; callers that wait for its load hear of it."""
        self._scheduler.request_resource_unload(resource, now())
        self.settle_waiters_without_load()
        self._wake_engine()

    @property
    def adapter_states(self) -> dict[LoadableResource, AdapterStatus]:
        """Adapters that are loaded, being loaded or being unloaded, and others that requests need."""
        return self._scheduler.resource_cache.adapter_states

    def execute_loads_and_unloads(self) -> None:
        self.loader.execute_commands(self._scheduler.take_resource_commands(now()))
        self.settle_waiters_without_load()

    def settle_waiters_without_load(self) -> None:
        """Wake callers whose adapter became available without a load (its unload was revoked), no longer fits, or was
        unloaded while they waited, which drops their request for a load."""
        for resource in [*self._load_waiters]:
            if resource in self._scheduler.resource_cache.available:
                self._resolve_waiters(resource)
            elif reason := self._scheduler.resource_cache.why_never_fits(resource):
                self._scheduler.request_resource_unload(resource, now())
                self._resolve_waiters(resource, reason)
            elif resource not in self._scheduler.waiting.requested_loads:
                self._resolve_waiters(resource, UNLOADED_WHILE_WAITING)

    def _resolve_waiters(self, resource: LoadableResource, result: str | NotReady = "") -> None:
        if (future := self._load_waiters.pop(resource, None)) is not None:
            future.set_result(result)

    def stop_loading(self, reason: str) -> None:
        self._stop_reason = reason
        for resource in [*self._load_waiters]:
            self._resolve_waiters(resource, make_not_ready_error(reason))

    def _on_load_ended(self, resource: LoadableResource, reason: str) -> None:
        self._on_events(self._scheduler.on_resource_failed(resource, reason, now()) if reason
                        else self._scheduler.on_resource_loaded(resource, now()))
        self._resolve_waiters(resource, reason)

    def _on_unloaded(self, resource: LoadableResource) -> None:
        self._on_events(self._scheduler.on_resource_unloaded(resource, now()))
        if resource.kind == ADAPTER and self._adapter_metrics is not None:
            self._adapter_metrics.num_unloads.add()

    def _on_load_timed(self, resource: LoadableResource, seconds: float, reason: str) -> None:
        if resource.kind == ADAPTER and self._adapter_metrics is not None:
            self._adapter_metrics.observe_load(seconds, reason)
