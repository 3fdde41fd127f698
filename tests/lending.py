"""Adapters over a store that follows a script, for requests that go by them without shards that load any."""

from collections.abc import Iterator

from stored import Store

from router.adapters import Adapters
from router.config import RouterConfig
from router.request import Resource


class Shelf:
    """Numbers whatever is asked for."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, kind: str, source: str, takes: int = 0, *, stays: bool = False) -> Resource:
        return Resource(kind, self._numbers.setdefault(source, len(self._numbers) + 1), takes=takes, stays=stays)

    def knows(self, _: str, source: str) -> bool:
        return source in self._numbers

    def known(self, _: str) -> Iterator[str]:
        return iter([*self._numbers])


async def lent(config: RouterConfig, store: Store) -> Adapters:
    """Those that should stay are there."""
    adapters = Adapters(config, store, Shelf())
    await adapters.preload(kept)
    return adapters


async def kept(_: Resource) -> str:
    """Loaded at once."""
    return ""
