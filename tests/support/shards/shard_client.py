"""Client of a shard that serves in this process, for tests over real gRPC."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from support.model_runs.shared_probe_cache import get_probe_cache_path
from support.shards.counting_service import CountingShardService
from support.shards.protocol_messages import WARMUP_REQUEST

from shard.config import ShardConfig, SimulatedConfig
from shard.pb import shard_pb2 as pb
from shard.pb.shard_pb2_grpc import ShardStub
from shard.rpc.server import GRPC_OPTIONS, HealthService, serve_grpc

VERB_BY_REQUEST_TYPE = {pb.PrefillRequest: "Prefill", pb.DecodeRequest: "Decode", pb.FilterRequest: "Filter",
                        pb.ConcatRequest: "Concat", pb.EmbedRequest: "Embed"}


class CallCounter(Counter[str]):
    """Counter of calls by verb; `wait_for_count` waits until a count is reached."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def __setitem__(self, verb: str, count: int) -> None:
        super().__setitem__(verb, count)
        self._changed.set()

    async def wait_for_count(self, verb: str, count: int) -> None:
        while self[verb] < count:
            self._changed.clear()
            await self._changed.wait()


class ShardClient:
    """Client that numbers messages by epoch and order, as the protocol requires."""

    def __init__(self, service: CountingShardService, stub: Any) -> None:
        self.worker: Any = service.worker
        self.service, self.stub = service, stub
        self.call_counts = service.num_calls = CallCounter()
        self.epoch = self.order = 0

    async def warm_up_and_reset(self) -> "ShardClient":
        await self.stub.Warmup(WARMUP_REQUEST)
        await self.reset()
        return self

    async def reset(self) -> None:
        self.epoch, self.order = self.epoch + 1, 0
        await self.stub.Reset(pb.ResetRequest(epoch=self.epoch))

    def send(self, message: Any, order: int | None = None, epoch: int | None = None) -> Any:
        """Send the message at once and return its awaitable call."""
        return getattr(self.stub, VERB_BY_REQUEST_TYPE[type(message)])(self.set_epoch_and_order(message, order, epoch))

    def set_epoch_and_order(self, message: Any, order: int | None = None, epoch: int | None = None) -> Any:
        if order is None:
            order = self.order = self.order + 1
        message.epoch, message.order = self.epoch if epoch is None else epoch, order
        return message

    async def send_and_wait_for_receipt(self, message: Any, order: int) -> Any:
        """Send a message and return its call once the shard has received it."""
        verb = VERB_BY_REQUEST_TYPE[type(message)]
        call, count = self.send(message, order), self.call_counts[verb]
        await self.call_counts.wait_for_count(verb, count + 1)
        return call

    async def get_status_code(self, message: Any, **epoch_and_order: int) -> grpc.StatusCode:
        return await await_status_code(self.send(message, **epoch_and_order))

    def describe_state(self) -> str:
        """Return, as text, the state that must be equal on all ranks."""
        shard_state = self.worker.shard_state
        return f"{shard_state.batches} {shard_state.block_usage.num_holders} {shard_state.block_usage.is_full}"


async def await_status_code(call: Awaitable[Any]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def serve_and_connect(worker: Any, config: ShardConfig) -> AsyncIterator[ShardClient]:
    service = CountingShardService(worker, config.gap_timeout, getattr(worker, "pop_answer_delay", lambda *_: 0.0))
    async with (serve_grpc(config.socket, service, HealthService(60.0, lambda: None)),
                grpc.aio.insecure_channel(config.socket, options=GRPC_OPTIONS) as channel):
        yield ShardClient(service, ShardStub(channel))


def play_scenario(make_worker: Callable[[ShardConfig], Any], folder: Path, scenario: Callable[..., Awaitable[None]], *,
                  ranks: int = 1, gap_timeout: float = 30.0, fresh: bool = False, **simulated_settings: Any) -> None:
    """Run `scenario` against `ranks` shards, which are warmed up and in epoch 1 unless `fresh`."""
    async def run_scenario() -> None:
        async with AsyncExitStack() as stack:
            simulated = SimulatedConfig(time_scale=0.0, num_blocks=32, **simulated_settings)
            configs = [ShardConfig(f"unix:{folder}/{rank}", rank, ranks, gap_timeout, simulated=simulated,
                                   meeting_point=f"{folder}/meet", memory=get_probe_cache_path(rank))
                       for rank in range(ranks)]
            # Ranks of a real model wait for each other while they load.
            workers = await asyncio.gather(*(asyncio.to_thread(make_worker, config) for config in configs))
            clients = [await stack.enter_async_context(serve_and_connect(worker, config))
                       for worker, config in zip(workers, configs, strict=True)]
            if not fresh:
                await asyncio.gather(*(peer.warm_up_and_reset() for peer in clients))
            await scenario(*clients)
    asyncio.run(run_scenario())
