"""Fetching of adapters from their sources into the store.

Each source has its own thread pool, and concurrent requests for the same adapter share one fetch. For remote sources
the digest that a name resolved to is remembered and reused.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from launcher.adapters.digest_cache import Digests, known_by
from launcher.adapters.errors import Refused, called, understood
from launcher.adapters.protocol import Fetch
from launcher.adapters.remote_version import Sighting, Source
from launcher.adapters.store import Store, Version

AT_ONCE = 8  # maximum concurrent fetches per source


class Fetched(NamedTuple):
    version: Version
    private: bool  # whether a token was needed to read the adapter


class Fetching:
    """Fetcher with one thread pool per source. `close` cancels queued fetches and waits for running ones."""

    def __init__(self, store: Store, sources: Mapping[str, Source]) -> None:
        self._store, self._sources = store, sources
        self._pools = {source: ThreadPoolExecutor(AT_ONCE, thread_name_prefix=source) for source in sources}
        self._names, self._stamps = Digests(), Digests()
        self._under_way: dict[Fetch, Future[Fetched]] = {}
        self._lock = threading.Lock()

    def start(self, asked: Fetch) -> "Future[Fetched]":
        """Return a future of the adapter, or of Refused, without waiting for the source."""
        if self._sources[asked.source].is_far and not asked.fresh and (found := self._remembered(asked)):
            done: Future[Fetched] = Future()
            done.set_result(found)
            return done
        same = replace(asked, fresh=False)
        with self._lock:
            if not asked.fresh and (begun := self._under_way.get(same)):
                return begun
            future = self._under_way[same] = self._pools[asked.source].submit(self._fetch, asked)
        future.add_done_callback(lambda done: self._end(same, done))
        return future

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def _end(self, asked: Fetch, done: "Future[Fetched]") -> None:
        with self._lock:
            if self._under_way.get(asked) is done:
                del self._under_way[asked]

    # -- in a thread

    def _fetch(self, asked: Fetch) -> Fetched:
        source = self._sources[asked.source]
        try:
            with understood(f"the adapter {called(asked.name)}"), source.look(asked) as sighting:
                return self._taken(asked, sighting)
        except Refused as refused:
            if refused.kind == "unreachable" and (found := self._known(asked)):
                return found
            self._forget(asked, refused)
            raise

    def _known(self, asked: Fetch) -> Fetched | None:
        """Return what is known of a remote adapter without its source: from memory or from this machine's caches."""
        return (self._remembered(asked) or self._nearby(asked)) if self._sources[asked.source].is_far else None

    def _nearby(self, asked: Fetch) -> Fetched | None:
        with understood(f"the adapter {called(asked.name)}"):
            sighting = self._sources[asked.source].nearby(asked)
            return Fetched(self._version(sighting), sighting.private) if sighting else None

    def _taken(self, asked: Fetch, sighting: Sighting) -> Fetched:
        """Store the adapter and remember its digest.

        If a token was needed, the adapter is not public, or no longer, so its entry without a token is dropped.
        """
        version = self._version(sighting)
        if sighting.token:
            self._names.drop(known_by(asked.source, asked.name, ""))
        self._names.put(known_by(asked.source, asked.name, sighting.token), version.digest)
        return Fetched(version, sighting.private)

    def _version(self, sighting: Sighting) -> Version:
        known = self._stamps.get(sighting.stamp) if sighting.stamp is not None else ""
        if known and (version := self._store.find(known)):
            return version
        self._store.check_room(sighting.size)
        with self._store.incoming() as incoming:
            sighting.bring(incoming.folder)
            version = self._store.publish(incoming.folder)
        if sighting.stamp is not None:
            self._stamps.put(sighting.stamp, version.digest)
        return version

    def _remembered(self, asked: Fetch) -> Fetched | None:
        for token in self._sources[asked.source].tokens(asked):
            digest = self._names.get(known_by(asked.source, asked.name, token))
            if digest and (version := self._store.find(digest)):
                return Fetched(version, bool(token))
        return None

    def _forget(self, asked: Fetch, refused: Refused) -> None:
        """Drop the remembered digests if the source reports the adapter as missing or forbidden for all tokens."""
        if refused.kind in {"missing", "forbidden"}:
            for token in self._sources[asked.source].tokens(asked):
                self._names.drop(known_by(asked.source, asked.name, token))
