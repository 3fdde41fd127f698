"""The ranks of one model as one object: the same bytes to every rank, and rank 0's answer.

Knows gRPC, not what messages mean. Whatever goes wrong on the way is a `ShardsLost` that says what kind of loss it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import cycle
from typing import Any

import grpc
from google.protobuf.message import Message

from router.scheduler import Loss
from shard.pb import shard_pb2 as pb

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A shard that is started anew listens at the same path: look often, it is cheap.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Every Shards has connections of its own, also to a path that another one of this process knew.
    ("grpc.use_local_subchannel_pool", 1),
]
LOSSES = {
    grpc.StatusCode.INTERNAL: Loss.STEP_ERROR,
    grpc.StatusCode.FAILED_PRECONDITION: Loss.DEFECT,
    grpc.StatusCode.INVALID_ARGUMENT: Loss.DEFECT,
    grpc.StatusCode.ALREADY_EXISTS: Loss.DEFECT,
}
STEPS = (pb.PrefillRequest, pb.DecodeRequest)
SEVERITY = [Loss.DEFECT, Loss.STEP_ERROR, Loss.DEATH]  # what follows a failure in its epoch is refused, and says less
FIRST_WORD = 5.0  # seconds for a shard that listens to say that it does
NO_SERVICE = b""  # a HealthCheckRequest that names none
ANSWERS: dict[str, Any] = {
    "Info": pb.InfoAnswer, "Warmup": pb.WarmupAnswer, "Reset": pb.ResetAnswer, "Prefill": pb.StepAnswer,
    "Decode": pb.StepAnswer, "Filter": pb.Acknowledgement, "Concat": pb.Acknowledgement, "Load": pb.LoadAnswer,
    "Unload": pb.UnloadAnswer,
}
METHODS = {
    pb.InfoRequest: "Info", pb.WarmupRequest: "Warmup", pb.ResetRequest: "Reset", pb.PrefillRequest: "Prefill",
    pb.DecodeRequest: "Decode", pb.FilterRequest: "Filter", pb.ConcatRequest: "Concat", pb.LoadRequest: "Load",
    pb.UnloadRequest: "Unload",
}

Call = Callable[..., Awaitable[Any]]


class ShardsLost(Exception):
    def __init__(self, loss: Loss, reason: str, *, broken: bool = False) -> None:
        """`broken`: the processes live, but cannot go on."""
        super().__init__(reason)
        self.loss = loss
        self.broken = broken


class Rank:
    """One shard process: a channel and its calls, which take serialised messages."""

    def __init__(self, address: str, on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._calls: dict[str, Call] = {
            name: self._channel.unary_unary(f"/weft.shard.Shard/{name}", response_deserializer=answer.FromString)
            for name, answer in ANSWERS.items()
        }
        self._watch = self._channel.unary_stream("/grpc.health.v1.Health/Watch")
        self._watching: asyncio.Task[None] | None = None

    def call(self, method: str, message: bytes, timeout: float | None) -> Awaitable[Any]:
        """Under way as soon as this returns."""
        return self._calls[method](message, timeout=timeout)

    async def ready(self) -> None:
        """Waits until it listens, and watches it from then on: from its first word, or from when that is overdue."""
        await self._channel.channel_ready()
        watch = self._watch(NO_SERVICE)
        with suppress(grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(FIRST_WORD):
                await watch.read()
        self._watching = asyncio.create_task(self._watch_over(watch))

    async def _watch_over(self, watch: Any) -> None:
        """As long as this call is open the shard knows that its router is there, and we know that the shard is."""
        with suppress(grpc.aio.AioRpcError):
            while await watch.read() is not grpc.aio.EOF:
                pass
        self._on_gone()

    async def look_away(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def close(self) -> None:
        await self.look_away()
        await self._channel.close()


class Shards:
    def __init__(self, addresses: Iterable[str]) -> None:
        self.on_gone: Callable[[], None] = lambda: None  # called when a rank does not listen any more
        self.addresses = tuple(addresses)
        self.is_gone = False  # some rank is, since the last `connect`
        self._ranks: list[Rank] = []

    @property
    def world_size(self) -> int:
        return len(self.addresses)

    async def connect(self) -> None:
        """Waits until every rank listens."""
        if not self._ranks:
            self._ranks = [Rank(address, self._note_gone) for address in self.addresses]
        # All are watched anew: a watch from before may not have heard yet that its shard is gone.
        await asyncio.gather(*(rank.look_away() for rank in self._ranks))
        self.is_gone = False
        await asyncio.gather(*(rank.ready() for rank in self._ranks))

    def _note_gone(self) -> None:
        self.is_gone = True
        self.on_gone()

    async def close(self) -> None:
        ranks, self._ranks = self._ranks, []
        await asyncio.gather(*(rank.close() for rank in ranks))

    async def info(self, timeout: float) -> list[pb.InfoAnswer]:
        return await self._everywhere([pb.InfoRequest()], timeout)

    async def warmup(self, request: pb.WarmupRequest) -> None:
        await self._everywhere([request], None)

    async def reset(self, epoch: int, timeout: float) -> None:
        await self._everywhere([pb.ResetRequest(epoch=epoch)], timeout)

    async def load(self, request: pb.LoadRequest) -> None:
        await self._everywhere([request], None)

    async def unload(self, request: pb.UnloadRequest) -> None:
        await self._everywhere([request], None)

    def send(self, messages: list[Any], timeout: float) -> Awaitable[Any]:
        """All messages to all ranks, none waiting for the one before; they are under way when this returns. Resolves
        to rank 0's answer to the last of them when every rank has acknowledged all."""
        return self._last_answer(messages, self._start(messages, timeout))

    async def _everywhere(self, messages: list[Message], timeout: float | None) -> list[Any]:
        return await self._settle(messages, self._start(messages, timeout))

    async def _last_answer(self, messages: list[Any], calls: list[Awaitable[Any]]) -> Any:
        return (await self._settle(messages, calls))[len(messages) - 1]

    def _start(self, messages: list[Any], timeout: float | None) -> list[Awaitable[Any]]:
        sealed = [(METHODS[type(message)], message.SerializeToString()) for message in messages]
        return [rank.call(method, data, timeout) for rank in self._ranks for method, data in sealed]

    async def _settle(self, messages: list[Any], calls: list[Awaitable[Any]]) -> list[Any]:
        """Waits for all of them, also when one fails: a Reset that overtook what another rank still has before it
        would leave the ranks at different places."""
        results = [await settled(call) for call in calls]
        lost = [self._lost(result, message) for result, message in zip(results, cycle(messages), strict=False)
                if isinstance(result, grpc.aio.AioRpcError)]
        if lost:
            raise max(lost, key=lambda each: (SEVERITY.index(each.loss), each.broken))
        return results

    def _lost(self, error: grpc.aio.AioRpcError, message: Any) -> ShardsLost:
        code = error.code()
        loss = LOSSES.get(code, Loss.DEATH)
        broken = code is grpc.StatusCode.DEADLINE_EXCEEDED
        if loss is Loss.STEP_ERROR and self.world_size > 1:
            # Ranks that failed between two collectives are not in step, and some may wait for the others for ever.
            loss, broken = Loss.DEATH, True
        elif loss is Loss.STEP_ERROR and not isinstance(message, STEPS):
            loss = Loss.DEFECT  # no sequence is to blame
        return ShardsLost(loss, f"{code.name.lower()}: {error.details()}", broken=broken)


async def settled(call: Awaitable[Any]) -> Any:
    """Its answer or its error. All calls are under way, so waiting for one after the other takes no longer."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error
