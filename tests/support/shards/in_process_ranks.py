"""Simulated shards in the test process that can be paused and killed, and a `ShardGroup` that records its messages."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from support.shards.counting_service import CountingShardService

from router.shards.shard_group import ShardGroup
from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.pb import shard_pb2_grpc
from shard.rpc.server import GRPC_OPTIONS, HealthService
from shard.simulator.worker import SimulatedWorker

STEP_REQUESTS = (pb.PrefillRequest, pb.DecodeRequest, pb.EmbedRequest)


class StepGate:
    """Barrier at which the steps of a shard wait until a test releases them. Called in the compute thread."""

    def __init__(self) -> None:
        self.num_passed = 0
        self._permits = threading.Semaphore(0)
        self._is_released = False
        self._arrivals: asyncio.Queue[None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def __call__(self, seconds: float) -> None:
        self._loop.call_soon_threadsafe(self._arrivals.put_nowait, None)
        self._permits.acquire()
        self.num_passed += 1
        if self._is_released:
            self._permits.release()

    def release_steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._permits.release()

    def release_all(self) -> None:
        self._is_released = True
        self._permits.release()

    async def wait_for_step(self) -> None:
        """Wait until one more step has reached the gate."""
        await self._arrivals.get()


class ShardKilled(Exception):
    """Raised in the compute thread of a dead shard to end its call."""


class SimulatedShard:
    """Shard process simulated inside the test process; can die like a real one."""

    def __init__(self, config: ShardConfig, worker_class: type[SimulatedWorker],
                 sleep: Callable[[float], object] | None, on_death: Callable[["SimulatedShard"], None]) -> None:
        self.config = config
        self._on_death = partial(asyncio.get_running_loop().call_soon_threadsafe, on_death, self)
        self._is_killed = threading.Event()
        self.worker = worker_class(config, sleep, self._die)
        self.service = CountingShardService(self.worker, config.gap_timeout, self.worker.pop_answer_delay)
        self.health_service = HealthService(60.0, lambda: None)
        self._server = grpc.aio.server(options=GRPC_OPTIONS)
        shard_pb2_grpc.add_ShardServicer_to_server(self.service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health_service, self._server)
        self._server.add_insecure_port(config.socket)

    async def start(self) -> None:
        await self._server.start()

    async def kill(self) -> None:
        """Stop the shard at once: no call gets an answer any more."""
        self.health_service.close()
        await self._server.stop(None)
        del self._server  # a log record or a cache that refers to us must not keep gRPC's descriptors open
        self._is_killed.set()
        self.service.stop()
        self.service.close()
        await self.service.wait_for_calls()

    def remaining_faults(self) -> str:
        """Return the fault script of the successor: faults that have not fired yet, and poison, which stays."""
        fault_scripts = [part for part in self.config.simulated.faults.split(";") if part]
        return ";".join(part for part, fault in zip(fault_scripts, self.worker.faults, strict=True)
                        if not fault.has_fired or fault.kind == "poison")

    def _die(self) -> None:
        self._on_death()
        self._is_killed.wait()
        raise ShardKilled


class RecordingShardGroup(ShardGroup):
    """`ShardGroup` that records all sent messages and counts the steps."""

    def __init__(self, addresses: list[str], transport: str) -> None:
        super().__init__(addresses, transport)
        self.sent_messages: list[list[Any]] = []
        self.num_steps = 0
        self._step_waiters: list[tuple[int, asyncio.Future[None]]] = []

    def send(self, messages: list[Any], timeout: float) -> "asyncio.Future[Any]":
        self.sent_messages.append(messages)
        self.num_steps += isinstance(messages[-1], STEP_REQUESTS)
        for steps, future in self._step_waiters:
            if steps <= self.num_steps and not future.done():
                future.set_result(None)
        return super().send(messages, timeout)

    @property
    def num_reentered(self) -> int:
        """Number of times that a sequence entered a batch again: after a preemption, a hold or a loss of shards."""
        entered_ids = [number for messages in self.sent_messages for message in messages
                       if isinstance(message, pb.PrefillRequest) for number in message.sequences.ids]
        return len(entered_ids) - len(set(entered_ids))

    async def wait_for_num_steps(self, num_steps: int) -> None:
        """Wait until this number of steps has been sent."""
        if self.num_steps < num_steps:
            self._step_waiters.append((num_steps, asyncio.get_running_loop().create_future()))
            await self._step_waiters[-1][1]
