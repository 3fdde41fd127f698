"""The two deployments of Ray Serve: replicas, each with a server as its child, and the ingress before them."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from launcher.environment_variables import has_gpu
from launcher.ray_serve.forwarding import AnswerHead, ForwardedRequest, NoAnswer, forward, open_client
from launcher.ray_serve.ingress import IngressApp, Message, Receive, Send
from launcher.ray_serve.options import (
    AFFINITY,
    EXTRA_ONGOING_REQUESTS,
    PROCESS_END_SECONDS,
    RayOptions,
    ServerSettings,
    choose_num_gpus,
    make_scaling,
)
from launcher.ray_serve.server_process import ServerProcess

HEALTH_PERIOD_SECONDS, HEALTH_TIMEOUT_SECONDS = 2.0, 10.0
# A server replaces its own shards, which takes as long as the model needs to load. After that Ray replaces the replica.
MAX_UNHEALTHY_SECONDS = 300.0
DRAIN_CHECK_SECONDS = 0.5
MAX_INGRESS_REQUESTS = 100_000
MAX_START_ATTEMPTS = 3
MAX_METRICS_SECONDS = 10.0
ROUTER_CLASS = "launcher.ray_serve.request_router:AffinityRouter"
logger = logging.getLogger("ray.serve")


class WeftServer:
    """A replica: starts a server, passes requests to it, and ends with it."""

    async def __init__(self, settings: ServerSettings) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        self._settings = settings
        self._is_stopping = False
        self._ready_at = time.monotonic()
        self._is_ready = True
        self._server = await ServerProcess.start(settings.arguments, dict(settings.variables))
        self._client = open_client()
        self._watch_task = asyncio.create_task(self._end_with_server())

    async def forward(self, request: ForwardedRequest) -> AsyncGenerator[AnswerHead | NoAnswer | bytes]:
        """Yield the server's answer: its head, then the body's parts as they arrive."""
        async with aclosing(forward(self._client, self._server.url, request)) as parts:
            async for part in parts:
                yield part

    async def fetch_whole_answer(self, request: ForwardedRequest) -> tuple[str, AnswerHead | NoAnswer, bytes]:
        """Return this replica's name, and the server's whole answer."""
        name = serve.get_replica_context().replica_id.unique_id
        async with aclosing(forward(self._client, self._server.url, request)) as parts:
            head = await anext(parts)
            assert isinstance(head, AnswerHead | NoAnswer)
            return name, head, b"".join([part async for part in parts if isinstance(part, bytes)])

    async def check_health(self) -> None:
        """Raise if the server has not been healthy for so long that it will not become so by itself."""
        self._is_ready = await self._ask_for_health()
        if self._is_ready:
            self._ready_at = time.monotonic()
        elif time.monotonic() > self._ready_at + MAX_UNHEALTHY_SECONDS:
            raise RuntimeError(f"/health of {self._server.url} has failed for {MAX_UNHEALTHY_SECONDS:g} seconds")

    async def _ask_for_health(self) -> bool:
        try:
            async with (asyncio.timeout(HEALTH_TIMEOUT_SECONDS / 2),
                        self._client.get(f"{self._server.url}/health") as answer):
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    def record_routing_stats(self) -> dict[str, bool]:
        """Return what AffinityRouter has to know."""
        return {"is_ready": self._is_ready}

    async def _end_with_server(self) -> None:
        """End this process when the server has ended by itself, so that Ray replaces the replica at once."""
        code = await self._server.process.wait()
        if not self._is_stopping:
            logger.error("weft serve has ended with exit code %s, and this replica ends with it", code)
            os._exit(1)

    async def __del__(self) -> None:  # Ray Serve awaits it, once no request is left
        self._is_stopping = True
        if server := getattr(self, "_server", None):
            await server.stop(self._settings.shutdown_timeout + PROCESS_END_SECONDS / 2)
            await self._client.close()


class RayReplicas:
    """The replicas behind a handle of Ray Serve."""

    def __init__(self, servers: DeploymentHandle) -> None:
        self._servers = servers
        self._streaming_servers = servers.options(method_name="forward", stream=True)

    async def forward(self, request: ForwardedRequest) -> AsyncGenerator[AnswerHead | NoAnswer | bytes]:
        parts = self._streaming_servers.remote(request)
        try:
            head = await anext(parts)
        except (RayActorError, ReplicaUnavailableError, DeploymentUnavailableError) as error:
            yield NoAnswer(type(error).__name__)
            return
        try:
            yield head
            async for part in parts:
                yield part
        finally:
            parts.cancel()  # without effect on one that has ended

    async def fetch_answer_of_every_replica(
            self, request: ForwardedRequest) -> Sequence[tuple[str, AnswerHead | NoAnswer, bytes]]:
        answers = await self._servers.broadcast("fetch_whole_answer", request).results_async(
            timeout_s=MAX_METRICS_SECONDS, return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, BaseException)]


class WeftIngress:
    """A process of the ingress."""

    def __init__(self, servers: DeploymentHandle, settings: ServerSettings) -> None:
        self._ingress = IngressApp(RayReplicas(servers), settings.model_names, settings.payload_limit)

    async def __serve_build_asgi_app__(self) -> Callable[[Message, Receive, Send], Awaitable[None]]:
        async def run(scope: Message, receive: Receive, send: Send) -> None:  # uvicorn takes a method for older ASGI
            await self._ingress.run(scope, receive, send)

        return run


def build_app(options: RayOptions, settings: ServerSettings) -> serve.Application:
    """Return the application. `serve run` calls this without a connection; the GPUs of this machine count then."""
    are_there_gpus = bool(ray.cluster_resources().get("GPU")) if ray.is_initialized() else has_gpu()
    num_gpus = choose_num_gpus(options, settings, are_there_gpus=are_there_gpus)
    seconds_to_stop = settings.shutdown_timeout + PROCESS_END_SECONDS
    routing: dict[str, Any] = {"request_router_config": RequestRouterConfig(
        request_router_class=ROUTER_CLASS, request_routing_stats_period_s=HEALTH_PERIOD_SECONDS)}
    server = serve.deployment(
        WeftServer, name="WeftServer", max_ongoing_requests=settings.max_concurrent_requests + EXTRA_ONGOING_REQUESTS,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": num_gpus},
        graceful_shutdown_timeout_s=seconds_to_stop, graceful_shutdown_wait_loop_s=DRAIN_CHECK_SECONDS,
        health_check_period_s=HEALTH_PERIOD_SECONDS, health_check_timeout_s=HEALTH_TIMEOUT_SECONDS,
        max_constructor_retry_count=MAX_START_ATTEMPTS, **make_scaling(options, settings),
        **(routing if options.routing == AFFINITY else {}))
    ingress = serve.deployment(
        serve.ingress()(WeftIngress), name="WeftIngress", num_replicas=options.ingress_replicas,
        max_ongoing_requests=MAX_INGRESS_REQUESTS, ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=seconds_to_stop + PROCESS_END_SECONDS,
        graceful_shutdown_wait_loop_s=DRAIN_CHECK_SECONDS, health_check_period_s=HEALTH_PERIOD_SECONDS)
    return ingress.bind(server.bind(settings), settings)
