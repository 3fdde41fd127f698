"""Connection between the scheduler and the shards for adapters and grammars.

The scheduler's loads and unloads are sent to the shards; the results go to the scheduler, to the metrics, and to
callers that wait for an adapter although no request needs it.
"""

import time
from collections.abc import Callable

from router.engine.arrivals import Arrivals
from router.errors import NotReady
from router.request import ADAPTER, Resource
from router.scheduler.events import Event
from router.scheduler.resource_cache import Standing
from router.scheduler.scheduler import Scheduler
from router.shards.resource_loader import Loader, Resources, Told
from router.telemetry.counters import Tally

now = time.monotonic


class Supply:
    """Adapters and grammars of the shards, as the engine and the HTTP layer use them."""

    def __init__(self, shards: Loader, happened: Callable[[list[Event]], None], wake: Callable[[], None]) -> None:
        """`happened` is called with the scheduler's events, `wake` when there may be something to send."""
        self.resources = Resources(shards, Told(self._is_here, self._is_not_to_be_had, self._is_removed, self._took))
        self._happened = happened
        self._wake = wake
        self._arrivals = Arrivals()
        self._over = ""  # why nothing is loaded any more

    def start(self, core: Scheduler, tally: Tally) -> None:
        self._core = core
        self._tally = tally.adapters

    # -- for the HTTP layer

    async def load(self, resource: Resource) -> str:
        """Load a resource although no request needs it; return why that is not possible, or an empty string.

        A loss of the shards only delays the load. Raises NotReady if the server stops.
        """
        if self._over:
            raise NotReady(self._over)
        if reason := self._core.misfit(resource):
            return reason
        self._core.want(resource, now())
        self._wake()
        return "" if self._core.has(resource) else await self._arrivals.of(resource)

    def unload(self, resource: Resource) -> None:
        """Unload a resource as soon as no unfinished request needs it."""
        self._core.drop(resource, now())
        self._wake()

    @property
    def adapters(self) -> dict[Resource, Standing]:
        """Adapters that are loaded, being loaded or being unloaded, and others that requests need."""
        return self._core.adapters

    # -- for the loop

    def carry_out(self) -> None:
        """Send the loads and unloads that the scheduler has decided on."""
        self.resources.carry_out(self._core.moves(now()))
        self.look_for_arrivals()

    def look_for_arrivals(self) -> None:
        """Wake callers whose adapter became available without a load (its unload was revoked), or no longer fits."""
        for resource in self._arrivals.awaited:
            if self._core.has(resource):
                self._arrivals.came(resource)
            elif reason := self._core.misfit(resource):
                self._core.drop(resource, now())
                self._arrivals.came(resource, reason)

    def give_up(self, reason: str) -> None:
        self._over = reason
        self._arrivals.give_up(reason)

    # -- results from the shards

    def _is_here(self, resource: Resource) -> None:
        self._happened(self._core.available(resource, now()))
        self._arrivals.came(resource)

    def _is_not_to_be_had(self, resource: Resource, reason: str) -> None:
        self._happened(self._core.unavailable(resource, reason, now()))
        self._arrivals.came(resource, reason)

    def _is_removed(self, resource: Resource) -> None:
        self._happened(self._core.removed(resource, now()))
        if resource.kind == ADAPTER and self._tally is not None:
            self._tally.unloads.add()

    def _took(self, resource: Resource, seconds: float, reason: str) -> None:
        if resource.kind == ADAPTER and self._tally is not None:
            self._tally.loaded(seconds, reason)
