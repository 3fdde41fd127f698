"""One shard as a process: a worker behind gRPC on a unix socket, for as long as somebody needs it.

Ends on SIGTERM or SIGINT, some seconds after its parent is gone, and some time after the router that watched its health
is gone. Knows nothing of what the worker does.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from threading import Timer
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shard.config import ShardConfig
from shard.pb import shard_pb2_grpc
from shard.service import ShardService
from shard.simulated import SimulatedWorker
from shard.steplog import timing

MAX_MESSAGE_BYTES = 64 * 2**20
OPTIONS = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES))
SERVICES = ("", "weft.shard.Shard")
SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
UNKNOWN = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
PARENT_GRACE = 3.0  # seconds that a shard outlives its parent
STOP_GRACE = 1.0  # seconds that calls have to come to their end
STOP_LIMIT = 10.0  # seconds after which a worker that does not wake up is left behind


class Presence(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # ships no types
    """The standard health service, by which a router shows that it is there: it watches. `leave` is called when the
    last one has been gone for `grace` seconds, and never before the first came."""

    def __init__(self, grace: float, leave: Callable[[], object]) -> None:
        self._grace, self._leave = grace, leave
        self._num_watching = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service}")
        return SERVING

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        await context.write(SERVING if request.service in SERVICES else UNKNOWN)
        self._num_watching += 1
        self._stop_waiting()
        try:
            await self._over.wait()
        finally:
            self._num_watching -= 1
            if not self._num_watching and not self._over.is_set():
                self._timer = asyncio.get_running_loop().call_later(self._grace, self._leave)

    def close(self) -> None:
        """Nobody is watched for any more, and who watches is told so by the end of the call."""
        self._over.set()
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@asynccontextmanager
async def listening(socket: str, service: ShardService, presence: Presence) -> AsyncIterator[None]:
    server = grpc.aio.server(options=OPTIONS)
    shard_pb2_grpc.add_ShardServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(presence, server)
    server.add_insecure_port(socket)
    await server.start()
    try:
        yield
    finally:
        presence.close()
        service.stop()
        await server.stop(STOP_GRACE)
        service.close()
        await service.silence()


async def serve(config: ShardConfig) -> None:
    stop, worker = asyncio.Event(), SimulatedWorker(config)
    with timing(config.step_log) as run_step:
        service = ShardService(worker, config.gap_timeout, worker.lateness, run_step)
        async with listening(config.socket, service, Presence(config.router_grace, stop.set)):
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            watch_parent(config.parent_fd, PARENT_GRACE, stop.set)
            announce(config.ready_fd)
            await stop.wait()
            end_within(STOP_LIMIT)


def announce(descriptor: int) -> None:
    if descriptor >= 0:
        os.write(descriptor, b"ready\n")
        os.close(descriptor)


def watch_parent(descriptor: int, grace: float, leave: Callable[[], object]) -> None:
    """Call `leave` some seconds after the other end of the pipe was closed."""
    if descriptor >= 0:
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, partial(_read_parent, loop, descriptor, grace, leave))


def _read_parent(loop: asyncio.AbstractEventLoop, descriptor: int, grace: float, leave: Callable[[], object]) -> None:
    if not os.read(descriptor, 4096):
        loop.remove_reader(descriptor)
        loop.call_later(grace, leave)


def end_within(seconds: float) -> None:
    """A step that never returns must not keep a process that was told to end."""
    timer = Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


def main() -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(ShardConfig.from_json(sys.argv[1])))


if __name__ == "__main__":
    main()
