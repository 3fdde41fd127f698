"""Client of a shard that serves in this process, for tests over real gRPC."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from support.shared_probe_cache import memory

from shard.config import ShardConfig, SimulatedConfig
from shard.pb import shard_pb2 as pb
from shard.pb.shard_pb2_grpc import ShardStub
from shard.rpc.server import OPTIONS, Presence, listening
from shard.rpc.service import ShardService
from tests.shard.messages import WARMUP

METHODS = {pb.PrefillRequest: "Prefill", pb.DecodeRequest: "Decode", pb.FilterRequest: "Filter",
           pb.ConcatRequest: "Concat", pb.EmbedRequest: "Embed"}


class Calls(Counter[str]):
    """Counter of calls by verb; `reach` waits until a count is reached."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def __setitem__(self, verb: str, count: int) -> None:
        super().__setitem__(verb, count)
        self._changed.set()

    async def reach(self, verb: str, count: int) -> None:
        while self[verb] < count:
            self._changed.clear()
            await self._changed.wait()


class Peer:
    """Client that numbers messages by epoch and order, as the protocol requires."""

    def __init__(self, service: ShardService, stub: Any) -> None:
        self.worker: Any = service.worker
        self.service, self.stub = service, stub
        self.calls = service.calls = Calls()
        self.epoch = self.order = 0

    async def start(self) -> "Peer":
        await self.stub.Warmup(WARMUP)
        await self.reset()
        return self

    async def reset(self) -> None:
        self.epoch, self.order = self.epoch + 1, 0
        await self.stub.Reset(pb.ResetRequest(epoch=self.epoch))

    def send(self, message: Any, order: int | None = None, epoch: int | None = None) -> Any:
        """Send the message at once and return its awaitable call."""
        return getattr(self.stub, METHODS[type(message)])(self.numbered(message, order, epoch))

    def numbered(self, message: Any, order: int | None = None, epoch: int | None = None) -> Any:
        if order is None:
            order = self.order = self.order + 1
        message.epoch, message.order = self.epoch if epoch is None else epoch, order
        return message

    async def early(self, message: Any, order: int) -> Any:
        """Send a message and return its call once the shard has received it."""
        verb = METHODS[type(message)]
        call, count = self.send(message, order), self.calls[verb]
        await self.calls.reach(verb, count + 1)
        return call

    async def code(self, message: Any, **numbers: int) -> grpc.StatusCode:
        return await code_of(self.send(message, **numbers))

    def state(self) -> str:
        """Return, as text, the state that must be equal on all ranks."""
        ledger = self.worker.ledger
        return f"{ledger.batches} {ledger.blocks.num_holders} {ledger.blocks.full}"


async def code_of(call: Awaitable[Any]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def listen(worker: Any, config: ShardConfig) -> AsyncIterator[Peer]:
    service = ShardService(worker, config.gap_timeout, getattr(worker, "lateness", lambda *_: 0.0))
    async with (listening(config.socket, service, Presence(60.0, lambda: None)),
                grpc.aio.insecure_channel(config.socket, options=OPTIONS) as channel):
        yield Peer(service, ShardStub(channel))


def play(make_worker: Callable[[ShardConfig], Any], folder: Path, story: Callable[..., Awaitable[None]], *,
         ranks: int = 1, gap_timeout: float = 30.0, fresh: bool = False, **model: Any) -> None:
    """Run `story` against `ranks` shards, which are warmed up and in epoch 1 unless `fresh`."""
    async def told() -> None:
        async with AsyncExitStack() as stack:
            simulated = SimulatedConfig(time_scale=0.0, num_blocks=32, **model)
            configs = [ShardConfig(f"unix:{folder}/{rank}", rank, ranks, gap_timeout, simulated=simulated,
                                   meeting_point=f"{folder}/meet", memory=memory(rank)) for rank in range(ranks)]
            # Ranks of a real model wait for each other while they load.
            workers = await asyncio.gather(*(asyncio.to_thread(make_worker, config) for config in configs))
            peers = [await stack.enter_async_context(listen(worker, config))
                     for worker, config in zip(workers, configs, strict=True)]
            if not fresh:
                await asyncio.gather(*(peer.start() for peer in peers))
            await story(*peers)
    asyncio.run(told())
