"""Ollama's routes about models: what is served, in the format of Ollama's list, and refusals of what changes models."""

import asyncio
import time
from hashlib import sha256
from importlib.metadata import version
from typing import Any, NoReturn

from aiohttp import web

from router.http.ollama.rendering import format_time
from router.http.ollama.requests import OllamaShowRequest
from router.http.transport.auth import CLIENT
from router.http.transport.body import json_response, read_body
from router.http.transport.services import ServiceRoutes, Services

ARCHITECTURE = "transformer"  # of every model: clients find the context length under this name
NEVER = "9999-12-31T23:59:59Z"  # when a served model is unloaded
REFUSED_ROUTES = (("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create"), ("POST", "/api/copy"),
                  ("DELETE", "/api/delete"))


class OllamaModelRoutes(ServiceRoutes):
    """Handlers of `/api/tags`, `/api/ps`, `/api/show` and `/api/version`, and refusals of REFUSED_ROUTES."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._started_at = format_time(time.time_ns())

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/tags", self.tags), web.get("/api/ps", self.ps), web.get("/api/version", self.version),
                web.post("/api/show", self.show),
                *(web.route(method, path, self.refuse) for method, path in REFUSED_ROUTES)]

    async def tags(self, _: web.Request) -> web.Response:
        """List the model, and the adapters that requests may name as `model`."""
        return json_response({"models": [self._describe(name) | {"modified_at": self._started_at}
                                         for name in await self._list_names()]})

    async def ps(self, _: web.Request) -> web.Response:
        return json_response({"models": [
            self._describe(name) | {"expires_at": NEVER, "size_vram": 0, "context_length": self._context_length}
            for name in await self._list_names()]})

    async def version(self, _: web.Request) -> web.Response:
        return json_response({"version": version("weft")})

    async def show(self, request: web.Request) -> web.Response:
        show_request = await read_body(request, OllamaShowRequest, any_media_type=True)
        client = request[CLIENT]
        adapter = await show_request.load_adapter(self._services, client.source_token, client.tenant)
        name = self._services.served_model.name if adapter is None else show_request.model_name
        template = self._services.validator.chat_template
        return json_response({
            "modelfile": "", "parameters": "", "template": "" if template is None else template.source,
            "details": self._describe(name)["details"], "modified_at": self._started_at,
            "model_info": {"general.architecture": ARCHITECTURE, "general.basename": name,
                           f"{ARCHITECTURE}.context_length": self._context_length},
            "capabilities": await asyncio.to_thread(self._list_capabilities)})  # compiles the template

    async def refuse(self, request: web.Request) -> NoReturn:
        raise web.HTTPNotImplemented(
            text=f"{request.method} {request.path} is not served: this server has {self._services.served_model.name}, "
                 "which was chosen when it was started (weft serve MODEL)")

    @property
    def _context_length(self) -> int:
        return self._services.validator.limits.max_total_tokens

    async def _list_names(self) -> list[str]:
        return [*self._services.served_model.names, *await self._services.list_adapter_names()]

    def _describe(self, name: str) -> dict[str, Any]:
        """Return the entry of a model. The router knows neither files nor architecture, so sizes are 0 and texts are
        empty; the digest is that of the name."""
        base_name = self._services.served_model.name
        return {"name": name, "model": name, "size": 0, "digest": sha256(name.encode()).hexdigest(),
                "details": {"parent_model": "" if name in self._services.served_model.names else base_name,
                            "format": "safetensors", "family": "", "families": [], "parameter_size": "",
                            "quantization_level": ""}}

    def _list_capabilities(self) -> list[str]:
        model_info, validator = self._services.engine.model_info, self._services.validator
        is_known = {"completion": model_info.generation, "embedding": model_info.embeddings,
                    "tools": validator.chat_template is not None and validator.chat_template.takes_tools,
                    "thinking": validator.reasoning_format is not None,
                    "insert": model_info.generation and validator.prompt_encoder.infill is not None}
        return [name for name, is_there in is_known.items() if is_there]
