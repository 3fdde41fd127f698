"""`Adapters` on top of a fake store, for tests in which no shard loads an adapter."""

from collections.abc import Iterator

from support.fake_adapter_store import Store

from router.adapters.registry import Adapters
from router.config import RouterConfig
from router.request import Resource


class Shelf:
    """Fake `Shelves` that numbers every requested source."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, kind: str, source: str, takes: int = 0, *, stays: bool = False) -> Resource:
        return Resource(kind, self._numbers.setdefault(source, len(self._numbers) + 1), takes=takes, stays=stays)

    def knows(self, _: str, source: str) -> bool:
        return source in self._numbers

    def known(self, _: str) -> Iterator[str]:
        return iter([*self._numbers])


async def lent(config: RouterConfig, store: Store) -> Adapters:
    """Return `Adapters` that have preloaded the adapters of `config`."""
    adapters = Adapters(config, store, Shelf())
    await adapters.preload(kept)
    return adapters


async def kept(_: Resource) -> str:
    """Return no error, as if the shards had loaded the resource."""
    return ""
