"""Fetching of adapters from their sources into the store.

Each source has its own thread pool, and concurrent requests for the same adapter share one fetch. For remote sources
the digest that a name resolved to is remembered and reused.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from launcher.adapters.adapter_digest_cache import AdapterDigestCache, make_name_key
from launcher.adapters.allow_list import AdapterAllowList
from launcher.adapters.errors import AdapterError, convert_errors_to_adapter_error, quote_name
from launcher.adapters.sources.interface import AdapterSource, FetchableAdapter
from launcher.adapters.store import AdapterVersion, AdapterVersionStore
from launcher.adapters.store_protocol import FetchRequest

MAX_CONCURRENT_FETCHES = 8  # maximum concurrent fetches per source


class FetchedAdapter(NamedTuple):
    """Stored version of an adapter that was fetched, and whether it is private."""

    version: AdapterVersion
    is_private: bool  # whether a token was needed to read the adapter


class AdapterFetcher:
    """Fetcher with one thread pool per source. `close` cancels queued fetches and waits for running ones."""

    def __init__(self, store: AdapterVersionStore, sources: Mapping[str, AdapterSource],
                 allow_list: AdapterAllowList) -> None:
        self._store, self._sources, self._allow_list = store, sources, allow_list
        self._pools = {source: ThreadPoolExecutor(MAX_CONCURRENT_FETCHES, thread_name_prefix=source)
                       for source in sources}
        self._digests_by_name, self._digests_by_stamp = AdapterDigestCache(), AdapterDigestCache()
        self._fetches_in_flight: dict[FetchRequest, Future[FetchedAdapter]] = {}
        self._lock = threading.Lock()

    def start_fetch(self, request: FetchRequest) -> "Future[FetchedAdapter]":
        """Return a future of the adapter, or of AdapterError, without waiting for the source."""
        if self._sources[request.source].is_remote and not request.skips_name_cache and (
            remembered := self._find_remembered(request)):
            finished_future: Future[FetchedAdapter] = Future()
            finished_future.set_result(remembered)
            return finished_future
        in_flight_key = replace(request, skips_name_cache=False)
        with self._lock:
            if not request.skips_name_cache and (running_fetch := self._fetches_in_flight.get(in_flight_key)):
                return running_fetch
            future = self._fetches_in_flight[in_flight_key] = self._pools[request.source].submit(self._fetch, request)
        future.add_done_callback(lambda finished_future: self._remove_in_flight(in_flight_key, finished_future))
        return future

    def list_allowed_names(self, source: str, names: Sequence[str]) -> list[str]:
        """Return those of a source's names that requests may use."""
        return [name for name in names if self._allow_list.allows(self._sources[source].make_uri(name))]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def _remove_in_flight(self, request: FetchRequest, future: "Future[FetchedAdapter]") -> None:
        with self._lock:
            if self._fetches_in_flight.get(request) is future:
                del self._fetches_in_flight[request]

    # -- in a thread

    def _fetch(self, request: FetchRequest) -> FetchedAdapter:
        source = self._sources[request.source]
        try:
            with convert_errors_to_adapter_error(f"the adapter {quote_name(request.name)}"):
                if not request.is_from_settings:
                    self._allow_list.check(source.make_uri(request.name))
                with source.open_adapter(request) as remote_version:
                    return self._store_and_remember(request, remote_version)
        except AdapterError as refused:
            if refused.kind == "unreachable" and (last_fetched := self._find_when_unreachable(request)):
                return last_fetched
            self._forget_digests(request, refused)
            raise

    def _find_when_unreachable(self, request: FetchRequest) -> FetchedAdapter | None:
        """Return what is known of a remote adapter without its source: from memory or from this machine's caches."""
        return (self._find_remembered(request)
                or self._find_local_copy(request)) if self._sources[request.source].is_remote else None

    def _find_local_copy(self, request: FetchRequest) -> FetchedAdapter | None:
        with convert_errors_to_adapter_error(f"the adapter {quote_name(request.name)}"):
            local_version = self._sources[request.source].find_local_copy(request)
            return FetchedAdapter(self._get_or_download_version(local_version),
                                  local_version.is_private) if local_version else None

    def _store_and_remember(self, request: FetchRequest, remote_version: FetchableAdapter) -> FetchedAdapter:
        """Store the adapter and remember its digest.

        If a token was needed, the adapter is not public, or no longer, so its entry without a token is dropped.
        """
        version = self._get_or_download_version(remote_version)
        if remote_version.required_token:
            self._digests_by_name.remove(make_name_key(request.source, request.name, ""))
        self._digests_by_name.put(make_name_key(request.source, request.name, remote_version.required_token),
                                  version.digest)
        return FetchedAdapter(version, remote_version.is_private)

    def _get_or_download_version(self, remote_version: FetchableAdapter) -> AdapterVersion:
        known_digest = self._digests_by_stamp.get(
            remote_version.version_stamp) if remote_version.version_stamp is not None else ""
        if known_digest and (version := self._store.find_version(known_digest)):
            return version
        with (self._store.reserve_room(remote_version.num_bytes_to_fetch),
              self._store.create_incoming_folder() as incoming):
            remote_version.download_files(incoming.folder)
            version = self._store.publish_version(incoming.folder)
        if remote_version.version_stamp is not None:
            self._digests_by_stamp.put(remote_version.version_stamp, version.digest)
        return version

    def _find_remembered(self, request: FetchRequest) -> FetchedAdapter | None:
        for token in self._sources[request.source].list_tokens_to_try(request):
            digest = self._digests_by_name.get(make_name_key(request.source, request.name, token))
            if digest and (version := self._store.find_version(digest)):
                return FetchedAdapter(version, bool(token))
        return None

    def _forget_digests(self, request: FetchRequest, error: AdapterError) -> None:
        """Drop the remembered digests if the source reports the adapter as missing or forbidden for all tokens."""
        if error.kind in {"missing", "forbidden"}:
            for token in self._sources[request.source].list_tokens_to_try(request):
                self._digests_by_name.remove(make_name_key(request.source, request.name, token))
