"""What requests need beside the model, seen from the loop: the core's wishes go out to the shards, and what became of
them comes back to the core, to the counters, and to those who wait for it though no request needs it."""

import time
from collections.abc import Callable

from router.arrivals import Arrivals
from router.errors import NotReady
from router.events import Event
from router.request import ADAPTER, Resource
from router.residents import Standing
from router.resources import Loader, Resources, Told
from router.scheduler import Scheduler
from router.tally import Tally

now = time.monotonic


class Supply:
    def __init__(self, shards: Loader, happened: Callable[[list[Event]], None], wake: Callable[[], None]) -> None:
        """`happened` hears the core's events, `wake` that there may be something to send."""
        self.resources = Resources(shards, Told(self._is_here, self._is_not_to_be_had, self._is_removed, self._took))
        self._happened = happened
        self._wake = wake
        self._arrivals = Arrivals()
        self._over = ""  # why nothing is brought any more

    def start(self, core: Scheduler, tally: Tally) -> None:
        self._core = core
        self._tally = tally.adapters

    # -- for those who serve

    async def load(self, resource: Resource) -> str:
        """Has it on the shards, though no request needs it. Returns why not, if so. A loss of the shards only makes it
        take longer. Raises NotReady."""
        if self._over:
            raise NotReady(self._over)
        if reason := self._core.misfit(resource):
            return reason
        self._core.want(resource, now())
        self._wake()
        return "" if self._core.has(resource) else await self._arrivals.of(resource)

    def unload(self, resource: Resource) -> None:
        """It leaves the shards as soon as nobody in the house needs it."""
        self._core.drop(resource, now())
        self._wake()

    @property
    def adapters(self) -> dict[Resource, Standing]:
        """Those that are on the shards, come there or leave, and others that somebody needs."""
        return self._core.adapters

    # -- for the loop

    def carry_out(self) -> None:
        """What the core wishes by now."""
        self.resources.carry_out(self._core.moves(now()))
        self.look_for_arrivals()

    def look_for_arrivals(self) -> None:
        """What was about to leave may have been kept, and there may be less room than before."""
        for resource in self._arrivals.awaited:
            if self._core.has(resource):
                self._arrivals.came(resource)
            elif reason := self._core.misfit(resource):
                self._core.drop(resource, now())
                self._arrivals.came(resource, reason)

    def give_up(self, reason: str) -> None:
        self._over = reason
        self._arrivals.give_up(reason)

    # -- what became of it

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
