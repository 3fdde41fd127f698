"""Process of one shard: a worker behind gRPC, once the model is loaded. It listens on a unix socket, or for a router on
another host at an address with TLS and a secret. It ends on SIGTERM or SIGINT, some seconds after its parent is gone,
and some time after the router that watched its health is gone.
"""

import asyncio
import gc
import json
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
from shard.errors import PeerLost, StartupOutOfMemory
from shard.pb import shard_pb2_grpc
from shard.rpc.authentication import SecretInterceptor, check_address_is_protected, make_server_credentials
from shard.rpc.service import ShardService, Worker
from shard.simulator.worker import SimulatedWorker
from shard.telemetry.logs import start_logging
from shard.telemetry.span_export_interface import SpanSender, make_span_sender
from shard.telemetry.startup_progress import (
    LOAD_PHASE,
    WARM_UP_PHASE,
    OnProgress,
    ProgressPipe,
    ignore_progress,
    open_progress_file,
)
from shard.telemetry.step_instrumentation import make_traced_caller, open_step_log
from shard.tls_credentials import UNIX_SCHEME, ShardTlsCredentials, format_address, load_credentials

MODEL_WORKER_FACTORY = "shard.workers.factory:make_worker"  # imported when a model is served: it loads torch
MAX_MESSAGE_BYTES = 64 * 2**20
GRPC_OPTIONS = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0))  # of no use with unix sockets: a port belongs to one shard
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HEALTH_SERVICES = ("", "weft.shard.Shard")
# turns for which a thread of GNU OpenMP, which torch ships, spins before it sleeps
SPIN_COUNT_VARIABLE = "GOMP_SPINCOUNT"
SHORT_SPIN_COUNT = "10000"  # about a hundred microseconds: from one product of a step to the next
OPENMP_WAIT_VARIABLES = (SPIN_COUNT_VARIABLE, "OMP_WAIT_POLICY")
SERVING_RESPONSE = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
UNKNOWN_SERVICE_RESPONSE = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
PARENT_GRACE_SECONDS = 3.0  # seconds that a shard outlives its parent
STOP_GRACE_SECONDS = 1.0  # seconds that calls have to finish
PEER_LOST_EXIT_CODE = 70
MAX_STOP_SECONDS = 10.0  # seconds after which the process ends even if the worker still computes

logger = logging.getLogger(__name__)


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # ships no types
    """The standard health service. A router that watches shows that it is alive: `on_unwatched` is called when the last
    watcher has been gone for `grace_seconds`, and never before there was one."""

    def __init__(self, grace_seconds: float, on_unwatched: Callable[[], object]) -> None:
        self._grace_seconds, self._on_unwatched = grace_seconds, on_unwatched
        self._num_watchers = 0
        self._unwatched_timer: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        if request.service not in HEALTH_SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service}")
        return SERVING_RESPONSE

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        await context.write(SERVING_RESPONSE if request.service in HEALTH_SERVICES else UNKNOWN_SERVICE_RESPONSE)
        self._num_watchers += 1
        self._cancel_unwatched_timer()
        try:
            await self._closed.wait()
        finally:
            self._num_watchers -= 1
            if not self._num_watchers and not self._closed.is_set():
                self._unwatched_timer = asyncio.get_running_loop().call_later(self._grace_seconds, self._on_unwatched)

    def close(self) -> None:
        """End all calls of watchers, and do not wait for routers any more."""
        self._closed.set()
        self._cancel_unwatched_timer()

    def _cancel_unwatched_timer(self) -> None:
        if self._unwatched_timer is not None:
            self._unwatched_timer.cancel()


@asynccontextmanager
async def serve_grpc(socket: str, service: ShardService, health_service: HealthService,
                     credentials: ShardTlsCredentials | None = None) -> AsyncIterator[int]:
    """Listen at an address and yield the port, if it has one. Credentials are not needed on a unix socket. Raises
    ValueError for an address that other machines can reach, without credentials."""
    check_address_is_protected(socket, credentials)
    if socket.startswith(UNIX_SCHEME):
        credentials = None
    server = grpc.aio.server(options=GRPC_OPTIONS,
                             interceptors=() if credentials is None else (SecretInterceptor(credentials),))
    shard_pb2_grpc.add_ShardServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    port = (server.add_insecure_port(socket) if credentials is None
            else server.add_secure_port(socket, make_server_credentials(credentials)))
    await server.start()
    try:
        yield port
    finally:
        health_service.close()
        service.stop()
        await server.stop(STOP_GRACE_SECONDS)
        service.close()
        await service.wait_for_calls()


async def serve(config: ShardConfig) -> int:
    """Run the shard and return its exit code."""
    stop_event, compute_executor = asyncio.Event(), ThreadPoolExecutor(1, "compute")
    watch_parent(config.parent_fd, PARENT_GRACE_SECONDS, stop_event.set)
    with open_progress_file(config.progress) as on_progress:
        on_progress(LOAD_PHASE, 0, 0)
        try:
            credentials = load_credentials(config.credentials) if config.credentials else None
            check_address_is_protected(config.socket, credentials)
            worker = await load_worker(partial(make_worker, config, ProgressPipe(config.ready_fd, on_progress)),
                                       compute_executor, stop_event)
            # the router reports it, too
            span_sender = make_span_sender(config.traces, f"shard {config.rank}", logger.debug)
        except (ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            if config.ready_fd >= 0:
                report_startup_result(config.ready_fd, f"failed {reason}")
            else:
                sys.stderr.write(f"weft: {reason}\n")
            return choose_startup_exit_code(error)
        except PeerLost as lost:  # that rank, or its launcher, reports the cause
            logger.error("this shard ends with its group: %s", lost)
            return PEER_LOST_EXIT_CODE
        await serve_until_stopped(config, worker, compute_executor, stop_event, on_progress, span_sender=span_sender,
                                  credentials=credentials)
        if span_sender is not None:
            await asyncio.to_thread(span_sender.close)
    return 0


async def serve_until_stopped(config: ShardConfig, worker: Worker, compute_executor: ThreadPoolExecutor,
                              stop_event: asyncio.Event, on_progress: OnProgress, *,
                              span_sender: SpanSender | None = None,
                              credentials: ShardTlsCredentials | None = None) -> None:
    """Serve until `stop_event` is set."""
    answer_delay = worker.pop_answer_delay if isinstance(worker, SimulatedWorker) else None
    with open_step_log(config.step_log) as call_verb:
        service = ShardService(worker, config.gap_timeout, answer_delay,
                               make_traced_caller(span_sender, config.rank, call_verb), compute_executor,
                               on_progress=on_progress)
        async with serve_grpc(config.socket, service, HealthService(config.router_grace, stop_event.set),
                              credentials) as port:
            for number in STOP_SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, stop_event.set)
            gc.collect()
            gc.freeze()  # present objects are never freed
            on_progress(WARM_UP_PHASE, 0, 0)
            report_startup_result(config.ready_fd, make_ready_line(config, port))
            await stop_event.wait()
            force_exit_after(MAX_STOP_SECONDS)


def make_ready_line(config: ShardConfig, port: int) -> str:
    """Return `ready`, with the address for a router on another host, whose port was chosen by the system."""
    if not config.host_address:
        return "ready"
    return f"ready {port} {json.dumps({'address': format_address(config.host_address, port)})}"


async def load_worker(create_worker: Callable[[], Worker], compute_executor: ThreadPoolExecutor,
                      stop_event: asyncio.Event) -> Worker:
    """Make the worker in the compute thread, so that state per thread exists once. Loading cannot be interrupted: a
    signal ends the process as without a handler, and so does `stop_event`."""
    loading = asyncio.get_running_loop().run_in_executor(compute_executor, create_worker)
    stopping = asyncio.create_task(stop_event.wait())
    either: list[asyncio.Future[Any]] = [loading, stopping]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if stop_event.is_set():
        os._exit(1)
    stopping.cancel()
    return await loading


def make_worker(config: ShardConfig, on_progress: OnProgress = ignore_progress) -> Worker:
    if not config.model:
        return SimulatedWorker(config)
    shorten_openmp_spin(os.environ)
    module, _, name = MODEL_WORKER_FACTORY.partition(":")
    worker: Worker = getattr(import_without_gc(module), name)(config, on_progress=on_progress)
    return worker


def shorten_openmp_spin(environment: MutableMapping[str, str]) -> None:
    """Let torch's threads sleep soon after each product, unless the user decided how they wait. It has an effect only
    before torch is loaded.

    By default they spin for milliseconds. Beside other programs that uses up a thread's share of its core, and the next
    product then waits until all threads have their turn again: a step takes ten to fifty times as long.
    """
    if not any(name in environment for name in OPENMP_WAIT_VARIABLES):
        environment[SPIN_COUNT_VARIABLE] = SHORT_SPIN_COUNT


def import_without_gc(module_name: str) -> ModuleType:
    """Import a module without garbage collection, which would take a sixth of the time of importing torch, and exempt
    its objects from later collections."""
    gc.disable()
    try:
        return import_module(module_name)
    finally:
        gc.freeze()
        gc.enable()


def choose_startup_exit_code(error: ValueError | OSError) -> int:
    """Return 2 if every start will fail like this one until a setting, the model or the machine changes, else 1."""
    return 1 if isinstance(error, OSError | StartupOutOfMemory) and not isinstance(error, PermissionError) else 2


def report_startup_result(descriptor: int, line: str) -> None:
    """Write the last line for the parent, and close the pipe."""
    if descriptor >= 0:
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


def watch_parent(descriptor: int, grace_seconds: float, on_parent_gone: Callable[[], object]) -> None:
    """Call `on_parent_gone` some seconds after the other end of the pipe was closed."""
    loop = asyncio.get_running_loop()

    def read_pipe() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            loop.call_later(grace_seconds, on_parent_gone)

    if descriptor >= 0:
        loop.add_reader(descriptor, read_pipe)


def force_exit_after(seconds: float) -> None:
    """End the process after some seconds, even if a step never returns."""
    timer = Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


def main() -> None:
    config = ShardConfig.from_json(sys.argv[1])
    start_logging(f"shard {config.rank}", config.logs)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `serve_until_stopped` installs its handler
    raise SystemExit(asyncio.run(serve(config)))


if __name__ == "__main__":
    main()
