"""Group of all ranks of one model: sends the same bytes to every rank and returns rank 0's answer.

A failure is raised as `ShardsLost` with the kind of the loss, but a load or unload that fails while its shard is
connected returns the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from router.scheduler.fault_isolation import Loss
from router.shards.failures import ShardsLost, worst
from router.shards.rpc import ANSWERS, METHODS
from router.shards.step_stream import Line, Outcome, Trouble
from shard.pb import shard_pb2 as pb

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A restarted shard listens at the same path: reconnect often, it is cheap.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Every Shards opens its own connections, even to a path that another one of this process has used.
    ("grpc.use_local_subchannel_pool", 1),
]
LOAD_TIMEOUT = 60.0  # for one adapter or grammar
GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
FIRST_WORD = 5.0  # seconds for the first health response of a shard that listens
MUTE_AFTER = 5.0  # seconds without a connection before the socket is probed, and for the probe itself
UNIX = "unix:"
NO_SERVICE = b""  # a serialized HealthCheckRequest without a service name

Call = Callable[..., Awaitable[Any]]


class Rank:
    """Connection to one shard process: a channel, its unary calls, and a stream for the verbs of steps."""

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
        """Send a serialized message that has an `order` number, without waiting; return the future of its outcome."""
        if self._stream:
            # Opened with the first message: a call that is cancelled while it starts leaves tasks in gRPC's server.
            self._line = self._line or Line(self._channel)
            return self._line.send(message, timeout)
        return asyncio.ensure_future(self.call(method, message, timeout))

    async def call(self, method: str, message: bytes, timeout: float) -> Outcome:
        try:
            return await self._calls[method](message, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return Trouble(error.code(), error.details() or "")

    async def ready(self) -> None:
        """Wait until the shard listens, and watch its health from then on.

        Returns after the first health response, or after FIRST_WORD seconds without one.
        """
        await self._connected()
        watch = self._watch(NO_SERVICE)
        word = asyncio.ensure_future(watch.read())
        self._watching = asyncio.create_task(self._watch_over(watch, word))
        await asyncio.wait([word], timeout=FIRST_WORD)

    async def _connected(self) -> None:
        """Wait for the connection, however long the shard loads its model. Raises ShardsLost if the shard is hung.

        A shard counts as hung if it accepts connections and sends nothing.
        """
        ready = asyncio.ensure_future(self._channel.channel_ready())
        try:
            while not (await asyncio.wait([ready], timeout=MUTE_AFTER))[0]:
                if await is_mute(self._address):
                    raise ShardsLost(Loss.DEATH, "a shard listens and does not speak", broken=True)
        finally:
            ready.cancel()

    async def _watch_over(self, watch: Any, word: "asyncio.Future[Any]") -> None:
        """Read health responses until the call ends, then report that the shard has gone.

        The open call shows each side that the other is alive. A pending read is never cancelled: that would end the
        call.
        """
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
    """Pending outcomes, from all ranks, of messages that were sent together."""

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
    """Connections to all ranks of one model."""

    def __init__(self, addresses: Iterable[str], transport: str = "stream") -> None:
        self.on_gone: Callable[[], None] = lambda: None  # called when a rank has gone
        self.addresses = tuple(addresses)
        self._stream = transport == "stream"
        self.is_gone = False  # whether a rank has gone since the last `connect`
        self._ranks: list[Rank] = []
        self._num_connected = 0  # number of calls of `connect`

    @property
    def world_size(self) -> int:
        return len(self.addresses)

    async def connect(self) -> None:
        """Wait until every rank listens, and watch the health of all."""
        if not self._ranks:
            self._ranks = [Rank(address, self._note_gone, stream=self._stream) for address in self.addresses]
        # Restart all watches: an old one may not have noticed yet that its shard has gone.
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
        """Load on all ranks; return why some rank failed, or an empty string. Raises ShardsLost if a rank has gone."""
        return await self._beside(request)

    async def unload(self, request: pb.UnloadRequest) -> str:
        return await self._beside(request)

    def send(self, messages: list[Any], timeout: float) -> "asyncio.Future[Any]":
        """Send all messages to all ranks, without waiting for answers in between.

        The future ends when every rank has answered every message, even if one fails: a Reset could otherwise overtake
        messages that another rank has yet to process, and leave the ranks in different states. Its result is rank 0's
        answer to the last message; after a failure it raises ShardsLost.
        """
        sealed = [self._seal(message) for message in messages]
        outcomes = [rank.send(method, data, timeout) for rank in self._ranks for method, data in sealed]
        return Answers(messages, outcomes, self.world_size).last

    async def _beside(self, request: Message) -> str:
        """Send a message that is not part of a step; return why some rank failed, or an empty string.

        Such an error does not end the epoch. Raises ShardsLost if a rank has gone, which is noted only if the ranks
        were not connected again meanwhile.
        """
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
    """Run all coroutines; if one fails, cancel the others."""
    tasks = [asyncio.ensure_future(one) for one in all_of_them]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def is_mute(address: str) -> bool:
    """Return whether a process accepts connections at this socket and sends nothing: gRPC's servers send first."""
    if not address.startswith(UNIX):
        return False
    try:
        reader, writer = await asyncio.open_unix_connection(address.removeprefix(UNIX))
    except OSError:
        return False  # no process listens yet
    try:
        await asyncio.wait_for(reader.read(1), MUTE_AFTER)
    except TimeoutError:
        return True
    except OSError:
        pass  # the process has ended
    finally:
        writer.close()
    return False
