"""The ranks of one model as one object: the same bytes to every rank, and rank 0's answer.

Knows gRPC, not what messages mean. Whatever goes wrong on the way is a `ShardsLost` that says what kind of loss it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from router.line import Line, Outcome, Trouble
from router.losses import ShardsLost, worst
from router.trials import Loss
from router.verbs import ANSWERS, METHODS
from shard.pb import shard_pb2 as pb

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A shard that is started anew listens at the same path: look often, it is cheap.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Every Shards has connections of its own, also to a path that another one of this process knew.
    ("grpc.use_local_subchannel_pool", 1),
]
LOAD_TIMEOUT = 60.0  # for one adapter or grammar
GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
FIRST_WORD = 5.0  # seconds for a shard that listens to say that it does
MUTE_AFTER = 5.0  # seconds without a connection after which it is looked at why there is none
UNIX = "unix:"
NO_SERVICE = b""  # a HealthCheckRequest that names none

Call = Callable[..., Awaitable[Any]]


class Rank:
    """One shard process: a channel, its calls, and a line for the verbs that take steps."""

    def __init__(self, address: str, on_gone: Callable[[], None], *, stream: bool) -> None:
        self._address = address
        self._on_gone = on_gone
        self._stream = stream
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._calls: dict[str, Call] = {
            name: self._channel.unary_unary(f"/weft.shard.Shard/{name}", response_deserializer=answer.FromString)
            for name, answer in ANSWERS.items()
        }
        self._watch = self._channel.unary_stream("/grpc.health.v1.Health/Watch")
        self._watching: asyncio.Task[None] | None = None
        self._line: Line | None = None

    def send(self, method: str, message: bytes, timeout: float) -> "asyncio.Future[Outcome]":
        """A sealed message that has its place in the order; it is under way as soon as this returns."""
        if self._stream:
            # Opened with the first message: a call that is cut off as it begins leaves gRPC's server with tasks.
            self._line = self._line or Line(self._channel)
            return self._line.send(message, timeout)
        return asyncio.ensure_future(self.call(method, message, timeout))

    async def call(self, method: str, message: bytes, timeout: float) -> Outcome:
        try:
            return await self._calls[method](message, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return Trouble(error.code(), error.details() or "")

    async def ready(self) -> None:
        """Waits until it listens, and watches it from then on: from its first word, or from when that is overdue."""
        await self._connected()
        watch = self._watch(NO_SERVICE)
        word = asyncio.ensure_future(watch.read())
        self._watching = asyncio.create_task(self._watch_over(watch, word))
        await asyncio.wait([word], timeout=FIRST_WORD)

    async def _connected(self) -> None:
        """However long a shard may load: what counts as hung is one that can be called and says nothing."""
        ready = asyncio.ensure_future(self._channel.channel_ready())
        try:
            while not (await asyncio.wait([ready], timeout=MUTE_AFTER))[0]:
                if await is_mute(self._address):
                    raise ShardsLost(Loss.DEATH, "a shard listens and does not speak", broken=True)
        finally:
            ready.cancel()

    async def _watch_over(self, watch: Any, word: "asyncio.Future[Any]") -> None:
        """As long as this call is open the shard knows that its router is there, and we know that the shard is. A word
        that is waited for is never given up: that would end the call."""
        with suppress(grpc.aio.AioRpcError):
            while await word is not grpc.aio.EOF:
                word = asyncio.ensure_future(watch.read())
        self._on_gone()

    async def look_away(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def close(self) -> None:
        await self.look_away()
        await self._channel.close()


class Answers:
    """What is still to come from all ranks for messages that were sent together."""

    def __init__(self, messages: list[Any], outcomes: "list[asyncio.Future[Outcome]]", world_size: int) -> None:
        self._messages = messages
        self._outcomes = outcomes
        self._world_size = world_size
        self._num_missing = len(outcomes)
        self.last: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        for outcome in outcomes:
            outcome.add_done_callback(self._arrived)

    def _arrived(self, _: "asyncio.Future[Outcome]") -> None:
        self._num_missing -= 1
        if not self._num_missing and not self.last.done():
            results = [outcome.result() for outcome in self._outcomes]
            lost = worst(self._messages, results, self._world_size)
            if lost is None:
                self.last.set_result(results[len(self._messages) - 1])
            else:
                self.last.set_exception(lost)


class Shards:
    def __init__(self, addresses: Iterable[str], transport: str = "stream") -> None:
        self.on_gone: Callable[[], None] = lambda: None  # called when a rank does not listen any more
        self.addresses = tuple(addresses)
        self._stream = transport == "stream"
        self.is_gone = False  # some rank is, since the last `connect`
        self._ranks: list[Rank] = []
        self._num_connected = 0  # how often

    @property
    def world_size(self) -> int:
        return len(self.addresses)

    async def connect(self) -> None:
        """Waits until every rank listens."""
        if not self._ranks:
            self._ranks = [Rank(address, self._note_gone, stream=self._stream) for address in self.addresses]
        # All are watched anew: a watch from before may not have heard yet that its shard is gone.
        await asyncio.gather(*(rank.look_away() for rank in self._ranks))
        self.is_gone = False
        self._num_connected += 1
        await together([rank.ready() for rank in self._ranks])

    def _note_gone(self) -> None:
        self.is_gone = True
        self.on_gone()

    async def close(self) -> None:
        ranks, self._ranks = self._ranks, []
        await asyncio.gather(*(rank.close() for rank in ranks))

    async def info(self, timeout: float) -> list[pb.InfoAnswer]:
        return await self._everywhere(pb.InfoRequest(), timeout)

    async def warmup(self, request: pb.WarmupRequest, timeout: float) -> None:
        await self._everywhere(request, timeout)

    async def reset(self, epoch: int, timeout: float) -> None:
        await self._everywhere(pb.ResetRequest(epoch=epoch), timeout)

    async def load(self, request: pb.LoadRequest) -> str:
        """Why some rank did not, or nothing. Raises ShardsLost when one is not there."""
        return await self._beside(request)

    async def unload(self, request: pb.UnloadRequest) -> str:
        return await self._beside(request)

    def send(self, messages: list[Any], timeout: float) -> "asyncio.Future[Any]":
        """All messages to all ranks, none waiting for the one before. The result is rank 0's answer to the last of them
        when every rank has answered all, also when one fails: a Reset that overtook what another rank still has before
        it would leave the ranks at different places. Otherwise it is ShardsLost."""
        sealed = [self._seal(message) for message in messages]
        outcomes = [rank.send(method, data, timeout) for rank in self._ranks for method, data in sealed]
        return Answers(messages, outcomes, self.world_size).last

    async def _beside(self, request: Message) -> str:
        """What ranks do not do beside the steps ends no epoch. Who was lost may have a successor by now."""
        connected = self._num_connected
        troubles = [result for result in await self._of_all(request, LOAD_TIMEOUT) if isinstance(result, Trouble)]
        if any(trouble.code in GONE for trouble in troubles):
            if connected == self._num_connected:
                self._note_gone()
            raise ShardsLost(Loss.DEATH, "a shard went away")
        return troubles[0].reason or troubles[0].code.name.lower() if troubles else ""

    def _seal(self, message: Any) -> tuple[str, bytes]:
        method = METHODS[type(message)]
        on_wire = pb.StepMessage(**{method.lower(): message}) if self._stream else message
        return method, on_wire.SerializeToString()

    async def _everywhere(self, message: Message, timeout: float) -> list[Any]:
        results = await self._of_all(message, timeout)
        lost = worst([message], results, self.world_size)
        if lost is not None:
            raise lost
        return results

    async def _of_all(self, message: Message, timeout: float) -> list[Outcome]:
        method, data = METHODS[type(message)], message.SerializeToString()
        return await asyncio.gather(*(rank.call(method, data, timeout) for rank in self._ranks))


async def together(all_of_them: list[Coroutine[Any, Any, None]]) -> None:
    """With the first that fails the others are given up."""
    tasks = [asyncio.ensure_future(one) for one in all_of_them]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def is_mute(address: str) -> bool:
    """Whether a process has this socket open and does not use it: gRPC's servers speak first."""
    if not address.startswith(UNIX):
        return False
    try:
        reader, writer = await asyncio.open_unix_connection(address.removeprefix(UNIX))
    except OSError:
        return False  # nobody listens yet
    try:
        await asyncio.wait_for(reader.read(1), MUTE_AFTER)
    except TimeoutError:
        return True
    except OSError:
        pass  # it left
    finally:
        writer.close()
    return False
