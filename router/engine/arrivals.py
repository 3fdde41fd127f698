"""Futures for callers that wait until an adapter is loaded on the shards although no request needs it.

Callers of the same adapter share one future; the cancellation of one does not affect the others.
"""

import asyncio

from router.errors import NotReady
from router.request import Resource


class Arrivals:
    def __init__(self) -> None:
        self._awaited: dict[Resource, asyncio.Future[str | NotReady]] = {}

    @property
    def awaited(self) -> list[Resource]:
        return [*self._awaited]

    async def of(self, resource: Resource) -> str:
        """Wait for the load; return why it failed, or an empty string. Raises NotReady after `give_up`."""
        if resource not in self._awaited:
            self._awaited[resource] = asyncio.get_running_loop().create_future()
        told = await asyncio.shield(self._awaited[resource])
        if isinstance(told, NotReady):
            raise told
        return told

    def came(self, resource: Resource, reason: str = "") -> None:
        """Wake the callers that wait for this resource. A non-empty `reason` means that it was not loaded."""
        if (future := self._awaited.pop(resource, None)) is not None:
            future.set_result(reason)

    def give_up(self, reason: str) -> None:
        while self._awaited:
            self._awaited.popitem()[1].set_result(NotReady(reason))
