"""Registry that resolves adapter names to adapter versions, which are identified by their digest. A name resolves to a
version on first use and keeps it until the adapter is fetched again; running requests keep the version they started
with. For private adapters, access is checked with the token of each request."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from router.adapters.reference import (
    AdapterReference,
    FetchedAdapter,
    MergedAdapterReference,
    RequestedAdapter,
    ResolvedAdapter,
    check_adapter_name,
    check_merge,
    is_other_base_model,
    normalize_name,
)
from router.adapters.store_client import AdapterStoreClient
from router.config import LOCAL_SOURCE, MAX_NAME_LENGTH, RouterConfig
from router.errors import (
    AdapterLoadFailed,
    AdapterNotFound,
    InvalidRequest,
    RetryableStartupError,
    TimedOut,
)
from router.request import ADAPTER, DEFAULT_TENANT, FairSemaphore, LoadableResource, Tenant

LOCAL_NAMES_SECONDS = 2.0  # for which the names of local adapters are kept
ACCESS_CACHE_SECONDS = 60.0  # for which granted access to a private adapter is cached
MAX_CONCURRENT_FETCHES = 8  # as many as the store runs at once from one source
MAX_KNOWN_ADAPTERS = 4096  # names, aliases, and cached grants of access, each
now = time.monotonic
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class AdapterEntry:
    """Version that a name resolves to, and the time of its last use."""

    version: FetchedAdapter
    last_used_at: float


# Loads a resource on the shards; returns why that failed, or an empty string.
LoadFunction = Callable[[LoadableResource], Awaitable[str]]
# Receives the source of a fetch, its outcome ("ok", "missing" or "failed"), and its seconds.
FetchObserver = Callable[[str, str, float], None]


class ResourceNumbering(Protocol):
    """Numbering of the resources that shards load."""

    def get_or_register(self, kind: str, source: str, max_bytes: int = 0, *,
                        is_pinned: bool = False) -> LoadableResource: ...

    def is_in_use(self, kind: str, source: str) -> bool: ...

    def sources_in_use(self, kind: str) -> Iterator[str]: ...


class AdapterRegistry:
    """Registry of adapters. `close` also ends the store."""

    def __init__(self, config: RouterConfig, store: AdapterStoreClient, resources: ResourceNumbering,
                 served_model: str = "", *, observe_fetch: FetchObserver = lambda *_: None) -> None:
        """`served_model` is the name of the served model; adapters of another one cause a warning in the log."""
        self._config = config
        self._served_model = served_model
        self._store = store
        self._resources = resources
        self._observe_fetch = observe_fetch
        self._entries: OrderedDict[AdapterReference, AdapterEntry] = OrderedDict()
        self.aliases: dict[str, AdapterReference] = {}  # aliases with the adapters that they name
        # named in the server's settings: every client may use them
        self._operator_references: set[AdapterReference] = set()
        self._fetch_tasks: dict[tuple[AdapterReference, str, str], asyncio.Task[AdapterEntry]] = {}  # with the tenant
        self._fetch_turns = FairSemaphore(MAX_CONCURRENT_FETCHES, config.max_concurrent_requests,
                                          "{} other adapters are being fetched".format)
        self._merge_turns = FairSemaphore(1, config.max_concurrent_requests,  # the store merges one at a time
                                          "{} other adapters are being merged".format)
        self._access_granted_until: OrderedDict[tuple[AdapterReference, bytes], float] = OrderedDict()
        self._default_adapter: ResolvedAdapter | None = None
        self._local_names: list[str] = []
        self._local_names_until = 0.0  # of time.monotonic

    async def close(self) -> None:
        for task in [*self._fetch_tasks.values()]:
            task.cancel()
        await self._store.close()

    # -- for requests

    async def resolve(self, requested: RequestedAdapter | None, deadline: float | None = None,
                      tenant: Tenant = DEFAULT_TENANT) -> ResolvedAdapter | None:
        """Resolve the adapter of a request; None resolves to the server's default adapter, if there is one. Tenants
        take turns. Raises InvalidRequest, AdapterNotFound, AdapterLoadFailed, Overloaded or TimedOut."""
        if requested is None:
            return self._default_adapter
        resolving = (self._resolve_merge(requested, tenant) if isinstance(requested, MergedAdapterReference)
                     else self._resolve_single(requested, tenant))
        try:
            return await asyncio.wait_for(resolving, None if deadline is None else max(deadline - now(), 0.0))
        except TimeoutError:
            raise TimedOut("its time ran out before its adapter was there") from None

    def get_canonical_reference(self, requested: RequestedAdapter | None) -> AdapterReference | ResolvedAdapter | None:
        """Return the adapter's name without fetching it; the names of a merge are joined. Raises InvalidRequest."""
        if requested is None:
            return self._default_adapter
        parts = requested.adapters if isinstance(requested, MergedAdapterReference) else (requested,)
        references = [*map(self.canonicalize, parts)]
        name = ",".join(reference.name for reference in references)
        return AdapterReference(name, references[0].source) if references else None

    async def fetch_latest(self, requested: AdapterReference, load: LoadFunction | None = None) -> ResolvedAdapter:
        """Resolve the name to the version that its source has now, even if it was resolved before. Raises
        AdapterLoadFailed if `load` fails: the name keeps its version, unless it was forgotten or resolved meanwhile."""
        reference = self.canonicalize(requested)
        previous_entry = self._entries.get(reference)
        fetched_entry = await self._fetch_shared(reference, requested.source_token, fresh=True)
        resolved = self._make_resolved_adapter(reference, fetched_entry)
        if load is not None and (reason := await load(resolved.resource)):
            if self._entries.get(reference) is fetched_entry:
                del self._entries[reference]
                if previous_entry is not None:
                    self._entries[reference] = previous_entry
            raise AdapterLoadFailed(f"the adapter {reference.name}: {reason}")
        return resolved

    def forget_version(self, requested: AdapterReference) -> bool:
        """Drop a name's version; return whether it had one. Running requests keep theirs. Aliases are dropped as well,
        except those of an adapter from the server's settings."""
        reference = self.canonicalize(requested)
        if reference not in self._operator_references:
            self.aliases = {alias: known for alias, known in self.aliases.items() if known != reference}
        return self._entries.pop(reference, None) is not None

    def add_alias(self, alias: str, requested: AdapterReference) -> None:
        """Add an alias for an adapter. An alias of an adapter from the server's settings is not replaced."""
        reference = self.canonicalize(requested)
        check_adapter_name("alias", alias)
        if alias not in self.aliases and len(self.aliases) >= MAX_KNOWN_ADAPTERS:
            raise InvalidRequest(f"there are {MAX_KNOWN_ADAPTERS} names of adapters already, and there may be no more")
        if self.aliases.get(alias) not in self._operator_references:
            self.aliases[alias] = reference

    async def list_local_names(self) -> list[str]:
        """Return the names of the adapters of the source `local`, used before or not, if it is the one that requests
        ask by default; else, and if the store does not answer, none. Names are kept for LOCAL_NAMES_SECONDS."""
        if self._config.adapter_source != LOCAL_SOURCE:
            return []
        if now() >= self._local_names_until:
            with suppress(AdapterLoadFailed):
                self._local_names = list((await self._store.send_request(op="names")).get("names", ()))
            self._local_names_until = now() + LOCAL_NAMES_SECONDS
        return self._local_names

    def canonicalize(self, requested: AdapterReference) -> AdapterReference:
        """Return the canonical reference: alias resolved, with a source, without a token. Raises InvalidRequest."""
        name = requested.name
        if requested.source is None and name in self.aliases:
            return self.aliases[name]
        check_adapter_name("adapter_id", name)
        source = requested.source or self._config.adapter_source
        return AdapterReference(normalize_name(name, source), source)

    def is_pinned(self, reference: AdapterReference) -> bool:
        """Return whether the adapter was loaded at start and is never unloaded."""
        return reference in self._operator_references

    def get_resource_in_use(self, version: FetchedAdapter) -> LoadableResource | None:
        """Return the resource of a version that is needed by a request or held by the shards, else None."""
        is_in_use = self._resources.is_in_use(ADAPTER, version.folder)
        return self._resources.get_or_register(ADAPTER, version.folder, version.max_shard_bytes) if is_in_use else None

    def get_entries(self) -> dict[AdapterReference, AdapterEntry]:
        return dict(self._entries)

    def find_public_names(self) -> dict[LoadableResource, list[str]]:
        """Return the names that every client may know of each adapter in use: of a private adapter its aliases, which
        the operator gave it, else its name, too."""
        aliases_by_reference: dict[AdapterReference, list[str]] = {}
        for alias, reference in self.aliases.items():
            aliases_by_reference.setdefault(reference, []).append(alias)
        names_by_resource: dict[LoadableResource, list[str]] = {}
        for reference, entry in self._entries.items():
            resource = self.get_resource_in_use(entry.version)
            if resource is not None:
                names = names_by_resource.setdefault(resource, [])
                names += aliases_by_reference.get(reference, [])
                names += [] if self.is_private(reference, entry) else [reference.name]
        return names_by_resource

    def references_being_fetched(self) -> set[AdapterReference]:
        """Return the adapters whose fetch is under way, known before or not."""
        return {named for named, _, _ in self._fetch_tasks}

    # -- at start

    async def preload(self, load_permanently: LoadFunction) -> None:
        """Load the adapters named in the settings by `load_permanently`. Raises ValueError."""
        config = self._config
        source = config.preloaded_adapter_source or config.adapter_source
        for adapter_id in config.preloaded_adapter_ids:
            alias, _, name = adapter_id.rpartition("=")
            await self._preload_adapter(alias, AdapterReference(name, source), load_permanently)
        if config.adapter_id:
            self._default_adapter = await self._preload_adapter(
                "", AdapterReference(config.adapter_id, config.adapter_source), load_permanently)

    async def _preload_adapter(self, alias: str, reference: AdapterReference,
                               load_permanently: LoadFunction) -> ResolvedAdapter:
        is_temporary = False
        try:
            self._operator_references.add(reference := self.canonicalize(reference))
            entry = await self._fetch_shared(reference, "")
            resolved = self._make_resolved_adapter(reference, entry, is_pinned=True)
            reason = await load_permanently(resolved.resource)
        except (AdapterLoadFailed, AdapterNotFound, InvalidRequest) as error:
            reason, is_temporary = str(error), isinstance(error, AdapterLoadFailed) and error.is_temporary
        if reason:
            raise (RetryableStartupError if is_temporary else ValueError)(
                f"the adapter {reference.name} cannot be served: {reason}")
        self.aliases[alias or reference.name] = reference
        return resolved

    def is_private(self, reference: AdapterReference, entry: AdapterEntry) -> bool:
        """Whether only those with access at its source may use an adapter, or know its name."""
        return entry.version.is_private and reference not in self._operator_references

    # -- internals

    async def _resolve_single(self, requested: AdapterReference, tenant: Tenant) -> ResolvedAdapter:
        reference = self.canonicalize(requested)
        entry = self._entries.get(reference)
        if entry is None or not self._resources.is_in_use(ADAPTER, entry.version.folder):
            entry = await self._fetch_shared(reference, requested.source_token, tenant)
        if self.is_private(reference, entry):
            granted_until = self._access_granted_until.get((reference, hash_access_token(requested.source_token)))
            if granted_until is None or granted_until < now():
                await self._send_store_request(reference.name, op="allowed", source=reference.source,
                                               name=reference.name, token=requested.source_token)
                self._cache_granted_access(reference, requested.source_token)
        return self._make_resolved_adapter(reference, entry)

    def _make_resolved_adapter(self, reference: AdapterReference, entry: AdapterEntry, *,
                               is_pinned: bool = False) -> ResolvedAdapter:
        entry.last_used_at = now()
        if reference in self._entries:  # else `forget_version` has removed it meanwhile
            self._entries.move_to_end(reference)
        version = entry.version
        resource = self._resources.get_or_register(ADAPTER, version.folder, version.max_shard_bytes,
                                                   is_pinned=is_pinned)
        return ResolvedAdapter(resource, version.digest, reference.name, reference.source or "",
                               self.is_private(reference, entry))

    async def _fetch_shared(self, reference: AdapterReference, source_token: str, tenant: Tenant = DEFAULT_TENANT, *,
                            fresh: bool = False) -> AdapterEntry:
        """Fetch a version in a task that a tenant's callers with the same name and token share; `fresh` always starts a
        new one. The cancellation of a caller does not cancel the task. Raises Overloaded if too many fetches of the
        tenant are under way."""
        key = (reference, source_token, tenant.name)
        if key not in self._fetch_tasks or fresh:
            task = asyncio.create_task(self._fetch_in_turn(reference, source_token, tenant, fresh=fresh))
            self._fetch_tasks[key] = task

            def forget_task(_: object) -> None:
                if self._fetch_tasks.get(key) is task:
                    del self._fetch_tasks[key]
                if not task.cancelled():
                    task.exception()  # mark the exception as retrieved: all callers may have been cancelled
            task.add_done_callback(forget_task)
        return await asyncio.shield(self._fetch_tasks[key])

    async def _fetch_in_turn(self, reference: AdapterReference, source_token: str, tenant: Tenant, *,
                             fresh: bool) -> AdapterEntry:
        async with self._fetch_turns.acquire(tenant.name):
            return await self._fetch(reference, source_token, fresh=fresh)

    async def _fetch(self, reference: AdapterReference, source_token: str, *, fresh: bool) -> AdapterEntry:
        request = {"op": "fetch", "source": reference.source, "name": reference.name, "token": source_token,
                   "own_token": reference in self._operator_references, "fresh": fresh}
        version = FetchedAdapter.from_store(await self._send_store_request(reference.name, **request))
        if is_other_base_model(version.base_model, self._served_model):
            logger.warning("the adapter %s names %s as its base model, and %s is served; unless that is the same "
                           "model, answers are wrong", reference.name, version.base_model, self._served_model)
        entry = self._entries[reference] = AdapterEntry(version, now())
        while len(self._entries) > MAX_KNOWN_ADAPTERS:
            self._entries.popitem(last=False)
        if version.is_private:
            self._cache_granted_access(reference, source_token)
        return entry

    async def _resolve_merge(self, merge: MergedAdapterReference, tenant: Tenant) -> ResolvedAdapter:
        check_merge(merge)
        resolved_parts = await asyncio.gather(*(self._resolve_single(part, tenant) for part in merge.adapters))
        name, source = ",".join(part.name for part in resolved_parts), resolved_parts[0].source
        if len(resolved_parts) == 1:
            return resolved_parts[0]
        async with self._merge_turns.acquire(tenant.name):
            version = FetchedAdapter.from_store(await self._send_store_request(
                name, op="merge", digests=[part.digest for part in resolved_parts], weights=list(merge.weights),
                strategy=merge.merge_strategy, density=1.0 if merge.merge_strategy == "linear" else merge.density,
                sign=merge.majority_sign_method))
        resource = self._resources.get_or_register(ADAPTER, version.folder, version.max_shard_bytes)
        return ResolvedAdapter(resource, version.digest, name, source, any(part.is_private for part in resolved_parts))

    def _cache_granted_access(self, reference: AdapterReference, source_token: str) -> None:
        self._access_granted_until[reference, hash_access_token(source_token)] = now() + ACCESS_CACHE_SECONDS
        while len(self._access_granted_until) > MAX_KNOWN_ADAPTERS:
            self._access_granted_until.popitem(last=False)

    async def _send_store_request(self, adapter_name: str, **request: Any) -> Mapping[str, Any]:
        """Send a question to the store, after pinning the versions in use so that the store does not remove them."""
        in_use = [folder.rpartition("/")[2] for folder in self._resources.sources_in_use(ADAPTER)]
        await self._store.send_request(op="pin", digests=in_use)
        started_at, outcome = now(), "failed"
        try:
            answer = await self._store.send_request(**request)
            if "error" not in answer:
                outcome = "ok"
                return answer
            kind, reason = answer.get("kind"), f"the adapter {adapter_name[:MAX_NAME_LENGTH]}: {answer['error']}"
            if kind in {"missing", "forbidden"}:
                outcome = "missing"
                raise AdapterNotFound(reason)
            raise AdapterLoadFailed(reason, is_temporary=kind in {"unreachable", "no_room"})
        finally:
            if request["op"] == "fetch":
                self._observe_fetch(request["source"], outcome, now() - started_at)


def hash_access_token(token: str) -> bytes:
    return sha256(token.encode(errors="surrogatepass")).digest()
