"""Routes about the server itself: `/info` with the model and its limits, and `/v1/models`."""

from importlib.metadata import version

from aiohttp import web

from router.http.transport.body import json_response
from router.http.transport.services import Services


class InfoRoutes:
    """Handlers of `/info` and `/v1/models`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._version = version("weft")

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/info", self.info), web.get("/v1/models", self.models)]

    async def info(self, _: web.Request) -> web.Response:
        model_info, config, limits = (self._services.engine.model_info, self._services.config,
                                      self._services.validator.limits)
        return json_response({
            "model_id": self._services.served_model.name,
            "notice": self._services.served_model.notice or None,
            "model_sha": None,
            "model_pipeline_tag": None,
            "model_dtype": model_info.dtype,
            "model_device_type": model_info.device,
            "num_shard": model_info.world_size,
            "exact": model_info.exact,
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_best_of": config.max_best_of,
            "max_stop_sequences": config.max_stop_sequences,
            "max_input_tokens": limits.max_input_tokens,
            "max_total_tokens": limits.max_total_tokens,
            "max_batch_total_tokens": model_info.num_blocks * model_info.block_size,
            "max_batch_size": config.max_batch_size,
            "waiting_served_ratio": config.waiting_served_ratio,
            "max_waiting_tokens": config.max_waiting_tokens,
            "validation_workers": config.validation_workers,
            "max_client_batch_size": config.max_client_batch_size,
            "router": "text-generation-router",  # the name of the API: clients look for it
            "version": self._version,
            "sha": None,
            "docker_label": None,
        })

    async def models(self, _: web.Request) -> web.Response:
        """List the model, and the adapters that requests may name as `model`."""
        base = self._services.served_model.name
        base_model = {"id": base, "object": "model", "created": 0, "owned_by": base}
        adapters = [base_model | {"id": name, "root": root, "parent": base}
                    for name, root in self._listed_adapters().items()]
        return json_response({"object": "list", "data": [base_model, *adapters]})

    def _listed_adapters(self) -> dict[str, str]:
        """Return the names of adapters at their source, by the names that clients use.

        The route is open without a key, so a private adapter is listed only under an alias. If the server has API
        keys, this holds for every adapter: other names would reveal what tenants use.
        """
        registry, config = self._services.validator.adapter_registry, self._services.config
        if registry is None:
            return {}
        source_names_by_alias = {name: wanted.name for name, wanted in registry.aliases.items()}
        if config.api_key or config.api_keys:
            return source_names_by_alias
        return ({wanted.name: wanted.name for wanted, entry in registry.get_entries().items()
                 if not entry.version.is_private and wanted.name not in source_names_by_alias.values()}
                | source_names_by_alias)
