"""Who waits for an adapter to be on the shards, though no request needs it: told once it is there, or why it is not.

Whoever leaves meanwhile takes nothing with them. Knows nothing of how anything comes to a shard.
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
        """Why it is not to be had, or nothing. Raises NotReady when nobody will bring it any more."""
        if resource not in self._awaited:
            self._awaited[resource] = asyncio.get_running_loop().create_future()
        told = await asyncio.shield(self._awaited[resource])
        if isinstance(told, NotReady):
            raise told
        return told

    def came(self, resource: Resource, reason: str = "") -> None:
        """With a reason it did not, and will not by itself."""
        if (future := self._awaited.pop(resource, None)) is not None:
            future.set_result(reason)

    def give_up(self, reason: str) -> None:
        while self._awaited:
            self._awaited.popitem()[1].set_result(NotReady(reason))
