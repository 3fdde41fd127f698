"""Routes for operators to list, load and unload adapters: `/v1/adapters`, and vLLM's `/v1/load_lora_adapter` and
`/v1/unload_lora_adapter`.

Every key may list adapters, only an admin key may load or unload them. Responses never contain the token of a source.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from aiohttp import web

from router.adapters.reference import Named, check_name
from router.adapters.registry import Adapters, Entry
from router.errors import AdapterFailed, InvalidRequest
from router.http.transport.adapter_names import is_base
from router.http.transport.auth import admins_only
from router.http.transport.body import Foreign, json_answer, read_body
from router.http.transport.generate import House
from router.scheduler.resource_cache import ABSENT, Standing

NOWHERE = Standing(ABSENT, 0)
MOST_REPEATED = 200  # characters of an unknown name in an error message


class LoadAdapter(Foreign):
    """An adapter to load. Without `source`, the server's default source (--adapter-source) is used."""

    id: str
    source: str | None = None
    api_token: str | None = None
    alias: str | None = None


class LoadLora(Foreign):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadLora(Foreign):
    lora_name: str


class AdapterRoutes:
    """Handlers of the adapter routes."""

    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/adapters", self.list_known),
            web.post("/v1/adapters", admins_only(self.load)),
            web.delete("/v1/adapters/{id:.*}", admins_only(self.unload)),
            web.post("/v1/load_lora_adapter", admins_only(self.load_lora)),
            web.post("/v1/unload_lora_adapter", admins_only(self.unload_lora)),
        ]

    async def list_known(self, _: web.Request) -> web.Response:
        known = self._adapters.known()
        return json_answer({"object": "list", "data": [*self._told(known.items())]})

    async def load(self, request: web.Request) -> web.Response:
        asked = await read_body(request, LoadAdapter)
        check_name("id", asked.id)
        named = await self._load(Named(asked.id, asked.source, asked.api_token or ""), asked.alias, "alias")
        entry = self._adapters.known().get(named)
        if entry is None:
            raise web.HTTPConflict(text=f"the adapter {named.name} was forgotten while it was loaded")
        return json_answer(next(self._told([(named, entry)])))

    async def unload(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        self._unload(name)
        return json_answer({"id": name, "object": "adapter", "deleted": True})

    async def load_lora(self, request: web.Request) -> web.Response:
        asked = await read_body(request, LoadLora)
        name, path = asked.lora_name, asked.lora_path
        check_name("lora_path", path)
        if self._found(name) and not asked.load_inplace:
            raise web.HTTPBadRequest(text=f"The lora adapter '{name}' has already been loaded. If you want to load the "
                                          "adapter in place, set 'load_inplace' to True.")
        wanted = Named(path, "local" if path.startswith(("/", ".")) else None)
        await self._load(wanted, name, "lora_name", in_place=asked.load_inplace)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_lora(self, request: web.Request) -> web.Response:
        name = (await read_body(request, UnloadLora)).lora_name
        self._unload(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    # -- the inside

    @property
    def _adapters(self) -> Adapters:
        adapters = self._house.validator.adapters
        if adapters is None:
            raise InvalidRequest("this model is served without adapters (--adapters)")
        return adapters

    async def _load(self, wanted: Named, alias: str | None, field: str, *, in_place: bool = False) -> Named:
        """Fetch and load an adapter and set its alias; return its name and source as the registry holds them.

        `field` is the request's field for the alias. With `in_place` the alias may be moved from another adapter.
        """
        adapters, engine = self._adapters, self._house.engine
        named = adapters.checked(wanted)
        self._check_alias(alias, named, field, in_place=in_place)
        if adapters.stays(named):
            raise web.HTTPConflict(text=f"the adapter {named.name} was loaded at start and stays as it is")
        before = adapters.known().get(named)
        try:
            await adapters.fetch(wanted, engine.supply.load)
        except AdapterFailed as error:
            raise web.HTTPFailedDependency(text=str(error)) from None
        if before is not None:
            self._let_go(before)
        if alias is not None:
            self._check_alias(alias, named, field, in_place=in_place)  # another request may have taken it meanwhile
            adapters.call(alias, named)
        return named

    def _check_alias(self, alias: str | None, named: Named, field: str, *, in_place: bool) -> None:
        """Reject (409) an alias that names something else: its users would silently get this adapter instead."""
        if alias is None:
            return
        check_name(field, alias)
        taken = self._taken(alias, named, in_place=in_place)
        if taken:
            raise web.HTTPConflict(
                text=f"`{field}` {alias} {taken}, so the adapter {named.name} ({named.source}) cannot be called so; "
                     f"choose another {field}")

    def _taken(self, alias: str, named: Named, *, in_place: bool) -> str:
        """Return why the name cannot be an alias of this adapter; empty if it can."""
        adapters, model = self._adapters, self._house.about.name
        if is_base(alias, model):
            return f"is a name of the model {model}"
        holder = adapters.names.get(alias)
        if holder is not None and holder != named and (adapters.stays(holder) or not in_place):
            return f"is the name of the adapter {holder.name} ({holder.source})"
        others = (*adapters.known(), *adapters.being_fetched())
        other = next((known for known in others if known.name == alias and known != named), None)
        return f"is the id of the adapter {other.name} ({other.source})" if other else ""

    def _unload(self, name: str) -> None:
        found = self._found(name)
        if not found:
            raise web.HTTPNotFound(text=f"The lora adapter '{name[:MOST_REPEATED]}' cannot be found.")
        if any(map(self._adapters.stays, found)):
            raise web.HTTPConflict(text=f"the adapter {name} was loaded at start and stays")
        for named in found:
            entry = self._adapters.known().get(named)
            self._adapters.forget(named)
            if entry is not None:
                self._let_go(entry)

    def _found(self, name: str) -> list[Named]:
        """Return the adapter with this alias, or else every known adapter of this name, from any source."""
        called = self._adapters.names.get(name)
        known = [named for named in self._adapters.known() if named.name == name]
        return known if called is None else [called]

    def _let_go(self, entry: Entry) -> None:
        """Unload a version from the shards, unless a known adapter still uses it."""
        if entry.version.folder not in {other.version.folder for other in self._adapters.known().values()}:
            resource = self._adapters.resource(entry.version)
            if resource is not None:
                self._house.engine.supply.unload(resource)

    def _told(self, entries: Iterable[tuple[Named, Entry]]) -> Iterator[dict[str, Any]]:
        states, aliases = self._house.engine.supply.adapters, self._adapters.names
        for named, entry in entries:
            version = entry.version
            resource = self._adapters.resource(version)
            standing = NOWHERE if resource is None else states.get(resource, NOWHERE)
            yield {
                "id": named.name,
                "object": "adapter",
                "alias": next((alias for alias, known in aliases.items() if known == named and alias != named.name),
                              None),
                "source": named.source,
                "digest": version.digest,
                "base": version.base,
                "state": standing.state,
                "bytes_on_disk": version.bytes,
                "bytes_on_shard": version.takes,
                "last_used": int(time.time() - (time.monotonic() - entry.used)),
                "requests": standing.num_users,
                "loads": self._house.engine.supply.resources.num_loads(version.folder),
                "private": version.is_private,
                "stays": self._adapters.stays(named),
            }
