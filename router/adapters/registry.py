"""Registry that resolves adapter names to adapter versions, which are identified by their digest.

A name resolves to a version on first use and keeps it until the adapter is fetched again; running requests keep the
version they started with. For private adapters, access is checked with the token of each request.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NoReturn, Protocol

from router.adapters.reference import (
    LONGEST_NAME,
    Borrowed,
    Merged,
    Named,
    Version,
    Wanted,
    check_merge,
    check_name,
    is_other_model,
    version_of,
)
from router.config import RouterConfig
from router.errors import AdapterFailed, AdapterMissing, CannotStartNow, InvalidRequest, Overloaded, TimedOut
from router.request import ADAPTER, Resource

ACCESS_SECONDS = 60.0  # for which granted access to a private adapter is cached
MOST_KNOWN = 4096  # names, aliases, and cached grants of access, each
now = time.monotonic
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Entry:
    """Version that a name resolves to, and the time of its last use."""

    version: Version
    used: float


class Store(Protocol):
    async def ask(self, **question: Any) -> Mapping[str, Any]: ...

    async def close(self) -> None: ...


# Loads a resource on the shards; returns why that failed, or an empty string.
Load = Callable[[Resource], Awaitable[str]]


class Shelves(Protocol):
    """Numbering of the resources that shards load."""

    def of(self, kind: str, source: str, takes: int = 0, *, stays: bool = False) -> Resource: ...

    def knows(self, kind: str, source: str) -> bool: ...

    def known(self, kind: str) -> Iterator[str]: ...


class Adapters:
    """Registry of adapters. `close` also ends the store."""

    def __init__(self, config: RouterConfig, store: Store, shelves: Shelves, model: str = "") -> None:
        """`model` is the name of the served model; adapters trained on another one cause a warning in the log."""
        self._config = config
        self._model = model
        self._store = store
        self._shelves = shelves
        self._entries: OrderedDict[Named, Entry] = OrderedDict()
        self._aliases: dict[str, Named] = {}
        self._ours: set[Named] = set()  # named in the server's settings: every client may use them
        self._fetching: dict[tuple[Named, str], asyncio.Task[Entry]] = {}
        self._let_in: OrderedDict[tuple[Named, bytes], float] = OrderedDict()
        self._static: Borrowed | None = None
        self._kept: dict[str, Resource] = {}  # loaded at start, by folder

    async def close(self) -> None:
        for task in [*self._fetching.values()]:
            task.cancel()
        await self._store.close()

    # -- for requests

    async def of(self, wanted: Wanted | None, deadline: float | None = None) -> Borrowed | None:
        """Resolve the adapter of a request; None resolves to the server's default adapter, if there is one.

        Raises InvalidRequest, AdapterMissing, AdapterFailed, Overloaded or TimedOut.
        """
        if wanted is None:
            return self._static
        finding = self._merge(wanted) if isinstance(wanted, Merged) else self._find(wanted)
        if deadline is None:
            return await finding
        try:
            return await asyncio.wait_for(finding, max(deadline - now(), 0.0))
        except TimeoutError:
            raise TimedOut("its time ran out before its adapter was there") from None

    def called(self, wanted: Wanted | None) -> Named | Borrowed | None:
        """Return the adapter's name without fetching it; the names of a merge are joined. Raises InvalidRequest."""
        if wanted is None:
            return self._static
        parts = [self.checked(part) for part in (wanted.parts if isinstance(wanted, Merged) else (wanted,))]
        return Named(",".join(part.name for part in parts), parts[0].source) if parts else None

    async def fetch(self, wanted: Named, load: Load | None = None) -> Borrowed:
        """Resolve the name to the version that its source has now, even if it was resolved before.

        If `load` fails, the name keeps its previous version, and AdapterFailed is raised.
        """
        named = self.checked(wanted)
        before = self._entries.get(named)
        borrowed = self._borrowed(named, await self._fetched(named, wanted.token, fresh=True))
        if load is not None and (reason := await load(borrowed.resource)):
            self._entries.pop(named, None)
            if before is not None:
                self._entries[named] = before
            raise AdapterFailed(f"the adapter {named.name}: {reason}")
        return borrowed

    def forget(self, wanted: Named) -> bool:
        """Drop a name's version; return whether it had one. Running requests keep theirs.

        Aliases are dropped as well, except those of an adapter from the server's settings.
        """
        named = self.checked(wanted)
        if named not in self._ours:
            self._aliases = {alias: known for alias, known in self._aliases.items() if known != named}
        return self._entries.pop(named, None) is not None

    def call(self, alias: str, wanted: Named) -> None:
        """Add an alias for an adapter. An alias of an adapter from the server's settings is not replaced."""
        named = self.checked(wanted)
        check_name("alias", alias)
        if alias not in self._aliases and len(self._aliases) >= MOST_KNOWN:
            raise InvalidRequest(f"there are {MOST_KNOWN} names of adapters already, and there may be no more")
        if self._aliases.get(alias) not in self._ours:
            self._aliases[alias] = named

    def checked(self, wanted: Named) -> Named:
        """Return the canonical reference: alias resolved, with a source, without a token. Raises InvalidRequest."""
        name = wanted.name
        if wanted.source is None and name in self._aliases:
            return self._aliases[name]
        check_name("adapter_id", name)
        return Named(name, wanted.source or self._config.adapter_source)

    def stays(self, named: Named) -> bool:
        """Return whether the adapter was loaded at start and is never unloaded."""
        return named in self._ours

    def resource(self, version: Version) -> Resource | None:
        """Return the resource of a version that is needed by a request or held by the shards, else None."""
        known = self._shelves.knows(ADAPTER, version.folder)
        return self._shelves.of(ADAPTER, version.folder, version.takes) if known else None

    def known(self) -> dict[Named, Entry]:
        return dict(self._entries)

    def being_fetched(self) -> set[Named]:
        """Return the adapters whose fetch is under way, known before or not."""
        return {named for named, _ in self._fetching}

    @property
    def names(self) -> dict[str, Named]:
        """Aliases with the adapters that they name."""
        return dict(self._aliases)

    # -- at start

    async def preload(self, keep: Load) -> None:
        """Load the adapters named in the settings, which are never unloaded, by calling `keep`. Raises ValueError."""
        config = self._config
        source = config.preloaded_adapter_source or config.adapter_source
        for given in config.preloaded_adapter_ids:
            alias, _, name = given.rpartition("=")
            await self._keep(alias or name, Named(name, source), keep)
        if config.adapter_id:
            self._static = await self._keep(config.adapter_id, Named(config.adapter_id, config.adapter_source), keep)

    async def _keep(self, alias: str, named: Named, keep: Load) -> Borrowed:
        is_temporary = False
        try:
            self._ours.add(named := self.checked(named))
            entry = await self._fetched(named, "")
            borrowed = self._borrowed(named, entry, stays=True)
            reason = await keep(borrowed.resource)
        except (AdapterFailed, AdapterMissing, InvalidRequest) as error:
            reason, is_temporary = str(error), isinstance(error, AdapterFailed) and error.is_temporary
        if reason:
            raise (CannotStartNow if is_temporary else ValueError)(
                f"the adapter {named.name} cannot be served: {reason}")
        self._aliases[alias] = named
        self._kept[entry.version.folder] = borrowed.resource
        return borrowed

    # -- internals

    async def _find(self, wanted: Named) -> Borrowed:
        named = self.checked(wanted)
        entry = self._entries.get(named)
        if entry is None or not self._shelves.knows(ADAPTER, entry.version.folder):
            entry = await self._fetched(named, wanted.token)
        if entry.version.is_private and named not in self._ours:
            await self._check_access(named, wanted.token)
        return self._borrowed(named, entry)

    def _borrowed(self, named: Named, entry: Entry, *, stays: bool = False) -> Borrowed:
        entry.used = now()
        if named in self._entries:  # else `forget` has removed it meanwhile
            self._entries.move_to_end(named)
        version = entry.version
        resource = self._shelves.of(ADAPTER, version.folder, version.takes, stays=stays)
        is_private = version.is_private and named not in self._ours
        return Borrowed(resource, version.digest, named.name, named.source or "", is_private)

    async def _fetched(self, named: Named, token: str, *, fresh: bool = False) -> Entry:
        """Fetch a version in a task that callers with the same name and token share; `fresh` always starts a new one.

        The cancellation of a caller does not cancel the task. Raises Overloaded if too many fetches are under way.
        """
        key = (named, token)
        if key not in self._fetching or fresh:
            if len(self._fetching) >= self._config.max_concurrent_requests:
                raise Overloaded(f"{len(self._fetching)} other adapters are being fetched")
            task = asyncio.create_task(self._fetch(named, token, fresh=fresh))
            self._fetching[key] = task
            task.add_done_callback(lambda done: self._over(key, done))
        return await asyncio.shield(self._fetching[key])

    def _over(self, key: tuple[Named, str], task: "asyncio.Task[Entry]") -> None:
        if self._fetching.get(key) is task:
            del self._fetching[key]
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved: all callers may have been cancelled

    async def _fetch(self, named: Named, token: str, *, fresh: bool) -> Entry:
        question = {"op": "fetch", "source": named.source, "name": named.name, "token": token,
                    "own_token": named in self._ours, "fresh": fresh}
        version = version_of(await self._answer(named.name, **question))
        if is_other_model(version.base, self._model):
            log.warning("the adapter %s was trained on %s, and %s is served", named.name, version.base, self._model)
        entry = self._entries[named] = Entry(version, now())
        while len(self._entries) > MOST_KNOWN:
            self._entries.popitem(last=False)
        if version.is_private:
            self._note_access(named, token)
        return entry

    async def _merge(self, wanted: Merged) -> Borrowed:
        check_merge(wanted)
        parts = await asyncio.gather(*map(self._find, wanted.parts))
        name, source = ",".join(part.name for part in parts), parts[0].source
        if len(parts) == 1:
            return parts[0]
        version = version_of(await self._answer(
            name, op="merge", digests=[part.digest for part in parts], weights=list(wanted.weights),
            strategy=wanted.strategy, density=1.0 if wanted.strategy == "linear" else wanted.density,
            sign=wanted.sign))
        resource = self._shelves.of(ADAPTER, version.folder, version.takes)
        return Borrowed(resource, version.digest, name, source, any(part.is_private for part in parts))

    async def _check_access(self, named: Named, token: str) -> None:
        """Ask the store whether the token may read the adapter, unless it was granted access less than a minute ago."""
        until = self._let_in.get((named, digest_of(token)))
        if until is None or until < now():
            await self._answer(named.name, op="allowed", source=named.source, name=named.name, token=token)
            self._note_access(named, token)

    def _note_access(self, named: Named, token: str) -> None:
        self._let_in[named, digest_of(token)] = now() + ACCESS_SECONDS
        while len(self._let_in) > MOST_KNOWN:
            self._let_in.popitem(last=False)

    async def _answer(self, about: str, **question: Any) -> Mapping[str, Any]:
        """Send a question to the store, after pinning the versions in use so that the store does not remove them."""
        in_use = [folder.rpartition("/")[2] for folder in self._shelves.known(ADAPTER)]
        await self._store.ask(op="pin", digests=in_use)
        answer = await self._store.ask(**question)
        if "error" in answer:
            fail(about, answer)
        return answer


def fail(name: str, answer: Mapping[str, Any]) -> NoReturn:
    kind, reason = answer.get("kind"), f"the adapter {name[:LONGEST_NAME]}: {answer['error']}"
    if kind in {"missing", "forbidden"}:
        raise AdapterMissing(reason)
    raise AdapterFailed(reason, is_temporary=kind in {"unreachable", "no_room"})


def digest_of(token: str) -> bytes:
    return sha256(token.encode(errors="surrogatepass")).digest()
