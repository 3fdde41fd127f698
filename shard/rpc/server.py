"""Process of one shard: a worker behind gRPC on a unix socket.

It listens once the model is loaded. It ends on SIGTERM or SIGINT, some seconds after its parent is gone, and some time
after the router that watched its health is gone.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from threading import Timer
from types import ModuleType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shard.config import ShardConfig
from shard.errors import NoRoom
from shard.pb import shard_pb2_grpc
from shard.rpc.service import ShardService, Worker, on_time
from shard.simulator.worker import SimulatedWorker
from shard.telemetry.logs import start_logging
from shard.telemetry.startup_progress import LOAD, WARM_UP, Lines, OnProgress, telling, untold
from shard.telemetry.step_log import timing
from shard.telemetry.step_spans import tracing
from shard.telemetry.traces import Sender, make_sender

MODEL_WORKER = "shard.workers.factory:make_worker"  # imported when a model is served: it loads torch
MAX_MESSAGE_BYTES = 64 * 2**20
OPTIONS = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES))
SIGNALS = (signal.SIGTERM, signal.SIGINT)
SERVICES = ("", "weft.shard.Shard")
SPIN = "GOMP_SPINCOUNT"  # turns for which a thread of GNU OpenMP, which torch ships, spins before it sleeps
SHORT_SPIN = "5000"  # some tens of microseconds: from one product of a step to the next, mostly
WAITING = (SPIN, "OMP_WAIT_POLICY")
SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
UNKNOWN = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
PARENT_GRACE = 3.0  # seconds that a shard outlives its parent
STOP_GRACE = 1.0  # seconds that calls have to finish
STOP_LIMIT = 10.0  # seconds after which the process ends even if the worker still computes

log = logging.getLogger(__name__)


class Presence(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # ships no types
    """The standard health service. A router that watches shows that it is alive: `leave` is called when the last
    watcher has been gone for `grace` seconds, and never before there was one."""

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
        """End all calls of watchers, and do not wait for routers any more."""
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


async def serve(config: ShardConfig) -> int:
    """Run the shard and return its exit code."""
    stop, compute = asyncio.Event(), ThreadPoolExecutor(1, "compute")
    watch_parent(config.parent_fd, PARENT_GRACE, stop.set)
    with telling(config.progress) as on_progress:
        on_progress(LOAD, 0, 0)
        try:
            worker = await load(partial(make_worker, config, Lines(config.ready_fd, on_progress)), compute, stop)
            sender = make_sender(config.traces, f"shard {config.rank}", log.debug)  # the router reports it, too
        except (ValueError, OSError) as error:
            fail(config.ready_fd, str(error))
            return exit_code(error)
        await keep(config, worker, compute, stop, on_progress, sender=sender)
        if sender is not None:
            await asyncio.to_thread(sender.close)
    return 0


async def keep(config: ShardConfig, worker: Worker, compute: ThreadPoolExecutor, stop: asyncio.Event,
               on_progress: OnProgress, *, sender: Sender | None = None) -> None:
    """Serve until `stop` is set."""
    lateness = worker.lateness if isinstance(worker, SimulatedWorker) else on_time
    with timing(config.step_log) as run_step:
        service = ShardService(worker, config.gap_timeout, lateness, tracing(sender, config.rank, run_step), compute,
                               on_progress=on_progress)
        async with listening(config.socket, service, Presence(config.router_grace, stop.set)):
            for number in SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            calm_collector()
            on_progress(WARM_UP, 0, 0)
            tell(config.ready_fd, "ready")
            await stop.wait()
            end_within(STOP_LIMIT)


async def load(make: Callable[[], Worker], compute: ThreadPoolExecutor, stop: asyncio.Event) -> Worker:
    """Make the worker in the compute thread, so that state per thread exists once. Loading cannot be interrupted: a
    signal ends the process as without a handler, and so does `stop`."""
    loading = asyncio.get_running_loop().run_in_executor(compute, make)
    stopping = asyncio.create_task(stop.wait())
    either: list[asyncio.Future[Any]] = [loading, stopping]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        os._exit(1)
    stopping.cancel()
    return await loading


def make_worker(config: ShardConfig, on_progress: OnProgress = untold) -> Worker:
    if not config.model:
        return SimulatedWorker(config)
    spin_shortly(os.environ)
    module, _, name = MODEL_WORKER.partition(":")
    worker: Worker = getattr(imported(module), name)(config, on_progress=on_progress)
    return worker


def spin_shortly(environment: MutableMapping[str, str]) -> None:
    """Let torch's threads sleep soon after each product, unless the user decided how they wait. It has an effect only
    before torch is loaded.

    By default they spin for milliseconds. Beside other programs that uses up a thread's share of its core, and the next
    product then waits until all threads have their turn again: a step takes ten to fifty times as long.
    """
    if not any(name in environment for name in WAITING):
        environment[SPIN] = SHORT_SPIN


def imported(module: str) -> ModuleType:
    """Import a module without garbage collection, which would take a sixth of the time of importing torch, and exempt
    its objects from later collections."""
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def calm_collector() -> None:
    """Exempt all present objects from garbage collection, since they are never freed."""
    gc.collect()
    gc.freeze()


def exit_code(error: ValueError | OSError) -> int:
    """Return 2 if every start will fail like this one until a setting, the model or the machine changes, else 1."""
    return 1 if isinstance(error, OSError | NoRoom) and not isinstance(error, PermissionError) else 2


def fail(descriptor: int, why: str) -> None:
    """Report once why the shard does not start: to the parent, or to stderr if there is none."""
    line = " ".join(why.split())
    if descriptor >= 0:
        tell(descriptor, f"failed {line}")
    else:
        sys.stderr.write(f"weft: {line}\n")


def tell(descriptor: int, line: str) -> None:
    """Write the last line for the parent, and close the pipe."""
    if descriptor >= 0:
        os.write(descriptor, f"{line}\n".encode())
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
    """End the process after some seconds, even if a step never returns."""
    timer = Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


def main() -> None:
    config = ShardConfig.from_json(sys.argv[1])
    start_logging(f"shard {config.rank}", config.logs)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `keep` installs its handler
    raise SystemExit(asyncio.run(serve(config)))


if __name__ == "__main__":
    main()
