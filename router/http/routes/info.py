"""Routes about the server itself: `/info` with the model and its limits, and `/v1/models`."""

from importlib.metadata import version

from aiohttp import web

from router.http.transport.body import json_answer
from router.http.transport.generate import House


class Facts:
    def __init__(self, house: House) -> None:
        self._house = house
        self._version = version("weft")

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/info", self.info), web.get("/v1/models", self.models)]

    async def info(self, _: web.Request) -> web.Response:
        facts, config, limits = self._house.engine.facts, self._house.config, self._house.validator.limits
        return json_answer({
            "model_id": self._house.about.name,
            "notice": self._house.about.notice or None,
            "model_sha": None,
            "model_pipeline_tag": None,
            "model_dtype": facts.dtype,
            "model_device_type": facts.device,
            "num_shard": facts.world_size,
            "exact": facts.exact,
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_best_of": config.max_best_of,
            "max_stop_sequences": config.max_stop_sequences,
            "max_input_tokens": limits.max_input_tokens,
            "max_total_tokens": limits.max_total_tokens,
            "max_batch_total_tokens": facts.num_blocks * facts.block_size,
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
        base = self._house.about.name
        served = {"id": base, "object": "model", "created": 0, "owned_by": base}
        adapters = [served | {"id": name, "root": root, "parent": base} for name, root in self._adapters().items()]
        return json_answer({"object": "list", "data": [served, *adapters]})

    def _adapters(self) -> dict[str, str]:
        """Return the names of adapters at their source, by the names that clients use.

        The route is open without a key, so a private adapter is listed only under an alias. If the server has API
        keys, this holds for every adapter: other names would reveal what tenants use.
        """
        adapters, config = self._house.validator.adapters, self._house.config
        if adapters is None:
            return {}
        named = {name: wanted.name for name, wanted in adapters.names.items()}
        if config.api_key or config.api_keys:
            return named
        return {wanted.name: wanted.name for wanted, entry in adapters.known().items()
                if not entry.version.is_private and wanted.name not in named.values()} | named
