"""An `AdapterRegistry` on top of a fake store, for tests in which no shard loads an adapter."""

from collections.abc import Iterator

from support.servers.fake_adapter_store import FakeAdapterStore

from router.adapters.registry import AdapterRegistry
from router.config import RouterConfig
from router.request import LoadableResource


class FakeResourceNumbering:
    """Fake `ResourceNumbering` that numbers every requested source."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def get_or_register(self, kind: str, source: str, max_bytes: int = 0, *,
                        is_pinned: bool = False) -> LoadableResource:
        return LoadableResource(kind, self._numbers.setdefault(source, len(self._numbers) + 1), max_bytes=max_bytes,
                                is_pinned=is_pinned)

    def is_in_use(self, _: str, source: str) -> bool:
        return source in self._numbers

    def sources_in_use(self, _: str) -> Iterator[str]:
        return iter([*self._numbers])


async def make_preloaded_adapters(config: RouterConfig, store: FakeAdapterStore) -> AdapterRegistry:
    """Return an `AdapterRegistry` that has preloaded the adapters of `config`."""
    adapters = AdapterRegistry(config, store, FakeResourceNumbering())
    await adapters.preload(accept_resource)
    return adapters


async def accept_resource(_: LoadableResource) -> str:
    """Return no error, as if the shards had loaded the resource."""
    return ""
