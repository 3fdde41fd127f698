"""Routes for operators to list, load and unload adapters: `/v1/adapters`, and vLLM's `/v1/load_lora_adapter` and
`/v1/unload_lora_adapter`. Every key may list adapters, only an admin key may load or unload them. Responses never
contain the token of a source."""

import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from aiohttp import web

from router.adapters.reference import AdapterReference, check_adapter_name, normalize_name
from router.adapters.registry import AdapterEntry, AdapterRegistry
from router.config import LOCAL_SOURCE
from router.errors import AdapterLoadFailed, InvalidRequest
from router.http.transport.auth import CLIENT, require_admin
from router.http.transport.body import LenientBodyModel, is_base_model, json_response, read_body
from router.http.transport.services import ServiceRoutes
from router.scheduler.loadable_resource_cache import UNLOADED_STATE, AdapterStatus
from router.validation.bounds import ADAPTER_NAME

UNLOADED_ADAPTER = AdapterStatus(UNLOADED_STATE, 0)
MAX_NAME_CHARS_IN_ERROR = 200  # characters of an unknown name in an error message


class LoadAdapterRequest(LenientBodyModel):
    """An adapter to load. Without `source`, the server's default source (--adapter-source) is used."""

    id: Annotated[str, ADAPTER_NAME]
    source: str | None = None
    api_token: str | None = None
    alias: Annotated[str | None, ADAPTER_NAME] = None


class LoadLoraAdapterRequest(LenientBodyModel):
    """Body of vLLM's `/v1/load_lora_adapter`."""

    lora_name: Annotated[str, ADAPTER_NAME]
    lora_path: Annotated[str, ADAPTER_NAME]
    load_inplace: bool = False


class UnloadLoraAdapterRequest(LenientBodyModel):
    """Body of vLLM's `/v1/unload_lora_adapter`."""

    lora_name: str


class AdapterRoutes(ServiceRoutes):
    """Handlers of the adapter routes."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/adapters", self.list_adapters),
            web.post("/v1/adapters", require_admin(self.load_adapter)),
            web.delete("/v1/adapters/{id:.*}", require_admin(self.unload_adapter)),
            web.post("/v1/load_lora_adapter", require_admin(self.load_lora_adapter)),
            web.post("/v1/unload_lora_adapter", require_admin(self.unload_lora_adapter)),
        ]

    async def list_adapters(self, request: web.Request) -> web.Response:
        """List the known adapters, the private ones for an admin key alone."""
        registry = self._registry
        shown = [(reference, entry) for reference, entry in registry.get_entries().items()
                 if request[CLIENT].is_admin or not registry.is_private(reference, entry)]
        return json_response({"object": "list", "data": [*self._adapter_objects(shown)]})

    async def load_adapter(self, request: web.Request) -> web.Response:
        load_request = await read_body(request, LoadAdapterRequest)
        check_adapter_name("id", load_request.id)
        reference = await self._fetch_and_load(
            AdapterReference(load_request.id, load_request.source, load_request.api_token or ""), load_request.alias,
            "alias")
        entry = self._registry.get_entries().get(reference)
        if entry is None:
            raise web.HTTPConflict(text=f"the adapter {reference.name} was forgotten while it was loaded")
        return json_response(next(self._adapter_objects([(reference, entry)])))

    async def unload_adapter(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        self._unload_by_name(name)
        return json_response({"id": name, "object": "adapter", "deleted": True})

    async def load_lora_adapter(self, request: web.Request) -> web.Response:
        load_request = await read_body(request, LoadLoraAdapterRequest)
        name, path = load_request.lora_name, load_request.lora_path
        check_adapter_name("lora_path", path)
        if self._find_adapters(name) and not load_request.load_inplace:
            raise web.HTTPBadRequest(text=f"The lora adapter '{name}' has already been loaded. If you want to load the "
                                     "adapter in place, set 'load_inplace' to True.")
        reference = AdapterReference(path, LOCAL_SOURCE if path.startswith(("/", ".")) else None)
        await self._fetch_and_load(reference, name, "lora_name", in_place=load_request.load_inplace)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_lora_adapter(self, request: web.Request) -> web.Response:
        name = (await read_body(request, UnloadLoraAdapterRequest)).lora_name
        self._unload_by_name(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    @property
    def _registry(self) -> AdapterRegistry:
        adapters = self._services.validator.adapter_registry
        if adapters is None:
            raise InvalidRequest("this model is served without adapters (--adapters)")
        return adapters

    async def _fetch_and_load(self, requested: AdapterReference, alias: str | None, alias_field: str, *,
                              in_place: bool = False) -> AdapterReference:
        """Fetch and load an adapter and set its alias; return its name and source as the registry holds them.

        `alias_field` is the request's field for the alias. With `in_place` the alias may be moved from another adapter.
        """
        registry, engine = self._registry, self._services.engine
        reference = registry.canonicalize(requested)
        self._check_alias(alias, reference, alias_field, in_place=in_place)
        if registry.is_pinned(reference):
            raise web.HTTPConflict(text=f"the adapter {reference.name} was loaded at start and stays as it is")
        previous_entry = registry.get_entries().get(reference)
        try:
            await registry.fetch_latest(requested, engine.adapter_grammar_controller.load)
        except AdapterLoadFailed as error:
            raise web.HTTPFailedDependency(text=str(error)) from None
        finally:
            if previous_entry is not None:
                self._unload_if_unused(previous_entry)
        if alias is not None:
            # another request may have taken it meanwhile
            self._check_alias(alias, reference, alias_field, in_place=in_place)
            registry.add_alias(alias, reference)
        return reference

    def _check_alias(self, alias: str | None, reference: AdapterReference, alias_field: str, *, in_place: bool) -> None:
        """Reject (409) an alias that names something else: its users would silently get this adapter instead."""
        if alias is None:
            return
        check_adapter_name(alias_field, alias)
        registry, model = self._registry, self._services.served_model
        holder = registry.aliases.get(alias)
        known_references = (*registry.get_entries(), *registry.references_being_fetched())
        other = next((known for known in known_references
                      if known.name == normalize_name(alias, known.source) and known != reference), None)
        if is_base_model(alias, model.names):
            conflict = f"is a name of the model {model.name}"
        elif holder is not None and holder != reference and (registry.is_pinned(holder) or not in_place):
            conflict = f"is the name of the adapter {holder.name} ({holder.source})"
        elif other is not None:
            conflict = f"is the id of the adapter {other.name} ({other.source})"
        else:
            return
        raise web.HTTPConflict(text=f"`{alias_field}` {alias} {conflict}, so the adapter {reference.name} "
                               f"({reference.source}) cannot be called so; choose another {alias_field}")

    def _unload_by_name(self, name: str) -> None:
        references = self._find_adapters(name)
        if not references:
            raise web.HTTPNotFound(text=f"The lora adapter '{name[:MAX_NAME_CHARS_IN_ERROR]}' cannot be found.")
        if any(map(self._registry.is_pinned, references)):
            raise web.HTTPConflict(text=f"the adapter {name} was loaded at start and stays")
        for reference in references:
            entry = self._registry.get_entries().get(reference)
            self._registry.forget_version(reference)
            if entry is not None:
                self._unload_if_unused(entry)

    def _find_adapters(self, name: str) -> list[AdapterReference]:
        """Return the adapter with this alias, or else every known adapter of this name, from any source."""
        aliased = self._registry.aliases.get(name)
        known = [named for named in self._registry.get_entries() if named.name == normalize_name(name, named.source)]
        return known if aliased is None else [aliased]

    def _unload_if_unused(self, entry: AdapterEntry) -> None:
        """Unload a version from the shards, unless a known adapter still uses it."""
        if entry.version.folder not in {other.version.folder for other in self._registry.get_entries().values()}:
            resource = self._registry.get_resource_in_use(entry.version)
            if resource is not None:
                self._services.engine.adapter_grammar_controller.request_resource_unload(resource)

    def _adapter_objects(self, entries: Iterable[tuple[AdapterReference, AdapterEntry]]) -> Iterator[dict[str, Any]]:
        adapter_states = self._services.engine.adapter_grammar_controller.adapter_states
        alias_by_reference: dict[AdapterReference, str] = {}  # the first of each that is not its name
        for alias, known in self._registry.aliases.items():
            if alias != known.name:
                alias_by_reference.setdefault(known, alias)
        for reference, entry in entries:
            version = entry.version
            resource = self._registry.get_resource_in_use(version)
            adapter_state = UNLOADED_ADAPTER if resource is None else adapter_states.get(resource, UNLOADED_ADAPTER)
            yield {
                "id": reference.name,
                "object": "adapter",
                "alias": alias_by_reference.get(reference),
                "source": reference.source,
                "digest": version.digest,
                "base": version.base_model,
                "state": adapter_state.state,
                "bytes_on_disk": version.disk_bytes,
                "bytes_on_shard": version.max_shard_bytes,
                "last_used": int(time.time() - (time.monotonic() - entry.last_used_at)),
                "requests": adapter_state.num_users,
                "loads": self._services.engine.adapter_grammar_controller.loader.count_past_loads(version.folder),
                "private": version.is_private,
                "stays": self._registry.is_pinned(reference),
            }
