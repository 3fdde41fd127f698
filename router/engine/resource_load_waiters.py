"""Futures for callers that wait until an adapter is loaded on the shards although no request needs it.

Callers of the same adapter share one future; the cancellation of one does not affect the others.
"""

import asyncio

from router.errors import NotReady
from router.request import LoadableResource


class ResourceLoadWaiters:
    """Futures of callers that wait until a resource is loaded on the shards, one per resource.

    It neither decides on loads (LoadableResourceCache) nor sends them (ResourceLoader); ResourceController resolves
    its futures.
    """

    def __init__(self) -> None:
        self._futures: dict[LoadableResource, asyncio.Future[str | NotReady]] = {}

    @property
    def awaited_resources(self) -> list[LoadableResource]:
        return [*self._futures]

    async def wait_for(self, resource: LoadableResource) -> str:
        """Wait for the load; return why it failed, or an empty string. Raises NotReady after `fail_all`."""
        if resource not in self._futures:
            self._futures[resource] = asyncio.get_running_loop().create_future()
        result = await asyncio.shield(self._futures[resource])
        if isinstance(result, NotReady):
            raise result
        return result

    def resolve(self, resource: LoadableResource, failure_reason: str = "") -> None:
        """Wake the callers that wait for this resource. A non-empty `failure_reason` means that it was not loaded."""
        if (future := self._futures.pop(resource, None)) is not None:
            future.set_result(failure_reason)

    def fail_all(self, reason: str) -> None:
        while self._futures:
            self._futures.popitem()[1].set_result(NotReady(reason))
