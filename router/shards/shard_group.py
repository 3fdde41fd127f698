"""Group of all ranks of one model: sends the same bytes to every rank and returns rank 0's answer. A failure is raised
as `ShardsLost`, but a load or unload that fails while its shard is connected returns the reason."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from itertools import cycle
from typing import Any

import grpc
from google.protobuf.message import Message

from router.config import RouterConfig
from router.scheduler.fault_isolation import ShardLossReason
from router.shards.failures import STEP_LOSS_REASONS, ShardsLost, loss_from_rpc_failure
from router.shards.hang_detection import wait_until_unresponsive
from router.shards.rank_address import (
    CHECK_ADDRESS_SECONDS,
    Channel,
    is_remote,
    open_channel,
    resolve_rank_address,
    wait_for_address,
)
from router.shards.step_stream import TIMEOUT_STATUS, RpcFailure, RpcOutcome, StepStreamClient
from shard.pb import shard_pb2 as pb
from shard.tls_credentials import ShardTlsCredentials

# The verbs of the shards: the name of each, and the type of its answer, by the type of its request.
VERBS: dict[type, tuple[str, Any]] = {
    pb.InfoRequest: ("Info", pb.InfoAnswer), pb.WarmupRequest: ("Warmup", pb.WarmupAnswer),
    pb.ResetRequest: ("Reset", pb.ResetAnswer), pb.LoadRequest: ("Load", pb.LoadAnswer),
    pb.UnloadRequest: ("Unload", pb.UnloadAnswer), pb.PrefillRequest: ("Prefill", pb.StepAnswer),
    pb.DecodeRequest: ("Decode", pb.StepAnswer), pb.FilterRequest: ("Filter", pb.Acknowledgement),
    pb.ConcatRequest: ("Concat", pb.Acknowledgement), pb.EmbedRequest: ("Embed", pb.EmbedAnswer),
}
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A restarted shard listens at the same path: reconnect often, it is cheap.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Every ShardGroup opens its own connections, even to a path that another one of this process has used.
    ("grpc.use_local_subchannel_pool", 1),
]
LOAD_TIMEOUT_SECONDS = 60.0  # for one adapter or grammar
DISCONNECTED_STATUSES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
FIRST_HEALTH_TIMEOUT_SECONDS = 5.0  # seconds for the first health response of a shard that listens
HANG_PROBE_TIMEOUT_SECONDS = 5.0  # seconds without a connection before the socket is probed, and for the probe itself
DEFAULT_RESPONSE_TIMEOUT_SECONDS = RouterConfig().shard_response_timeout
UNIX_SCHEME = "unix:"
# In ascending order. DEFECT is the least: after a failure, the later messages of its epoch are only rejected.
LOSS_REASONS_BY_SEVERITY = [ShardLossReason.DEFECT, *STEP_LOSS_REASONS, ShardLossReason.DEATH]
EMPTY_HEALTH_REQUEST = b""  # a serialized HealthCheckRequest without a service name


class RankConnection:
    """Connection to one shard process: a channel, its unary calls, and a stream for the verbs of steps."""

    def __init__(self, address: str, on_disconnect: Callable[[], None], *, use_stream: bool,
                 credentials: ShardTlsCredentials | None = None) -> None:
        self._address = address
        self._target = ""  # at which the shard listens, once that is known
        self._on_disconnect = on_disconnect
        self._use_stream = use_stream
        self._credentials = credentials
        self._channel: Channel
        self._unary_calls: dict[str, Callable[..., Awaitable[Any]]]
        self._watch_health: Any
        self._health_task: asyncio.Task[None] | None = None
        self._response_task: asyncio.Task[None] | None = None
        self._running_calls: set[Any] = set()
        self._failure: RpcFailure | None = None  # outcome of all calls, since the process does not respond
        self._step_stream: StepStreamClient | None = None

    async def _open_channel(self) -> None:
        """Open a channel to where the shard listens now, unless there is one."""
        target = await wait_for_address(self._address)
        if target == self._target:
            return
        await self._close_channel()
        if self._credentials is not None and is_remote(self._address):  # the shard is new, and may have new ones
            self._credentials = await asyncio.to_thread(self._credentials.reload)
        self._target = target
        self._channel = open_channel(self._address, target, CHANNEL_OPTIONS, self._credentials)
        self._unary_calls = {
            verb: self._channel.unary_unary(f"/weft.shard.Shard/{verb}", response_deserializer=answer.FromString)
            for verb, answer in VERBS.values()
        }
        self._watch_health = self._channel.unary_stream("/grpc.health.v1.Health/Watch")

    async def _close_channel(self) -> None:
        if self._target:
            self._target = ""
            await self._channel.close()

    def send(self, verb: str, message: bytes, timeout: float) -> "asyncio.Future[RpcOutcome]":
        """Send a serialized message that has an `order` number, without waiting; return the future of its outcome."""
        if self._use_stream:
            # Opened with the first message: a call that is cancelled while it starts leaves tasks in gRPC's server.
            self._step_stream = self._step_stream or StepStreamClient(self._channel)
            return self._step_stream.send(message, timeout)
        return asyncio.ensure_future(self.call(verb, message, timeout))

    async def call(self, verb: str, message: bytes, timeout: float) -> RpcOutcome:
        if self._failure is not None:
            return self._failure
        call: Any = self._unary_calls[verb](message, timeout=timeout)
        self._running_calls.add(call)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            return RpcFailure(error.code(), error.details() or "")
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            return self._failure
        finally:
            self._running_calls.discard(call)

    def fail(self, failure: RpcFailure) -> None:
        """Make this failure the outcome of all pending messages and calls, and of all until the next connection."""
        self._failure = failure
        if self._step_stream is not None:
            self._step_stream.fail(failure)
        for call in self._running_calls:
            call.cancel()

    def watch_responsiveness(self, timeout: float, on_unresponsive: Callable[[], None]) -> None:
        """Call `on_unresponsive` once the process does not respond for `timeout` seconds, until the next connection."""
        async def watch() -> None:
            await wait_until_unresponsive(self._channel, timeout)
            on_unresponsive()
        self._response_task = asyncio.create_task(watch())

    async def wait_until_ready(self) -> None:
        """Wait until the shard listens, however long it loads its model, and watch its health from then on. Returns
        after the first health response, or after FIRST_HEALTH_TIMEOUT_SECONDS without one. Raises ShardsLost if the
        shard is hung: it accepts connections and sends nothing; or if its host got another address meanwhile."""
        await self._open_channel()
        ready = asyncio.ensure_future(self._channel.channel_ready())
        check_seconds = CHECK_ADDRESS_SECONDS if is_remote(self._address) else HANG_PROBE_TIMEOUT_SECONDS
        try:
            while not (await asyncio.wait([ready], timeout=check_seconds))[0]:
                if await is_hung(self._address):
                    raise ShardsLost(ShardLossReason.DEATH, "a shard listens and does not speak", needs_restart=True)
                if resolve_rank_address(self._address) != self._target:
                    raise ShardsLost(ShardLossReason.DEATH, "a shard on another host is gone before it was connected")
        finally:
            ready.cancel()
        health_call = self._watch_health(EMPTY_HEALTH_REQUEST)
        pending_read = asyncio.ensure_future(health_call.read())
        self._health_task = asyncio.create_task(self._monitor_health(health_call, pending_read))
        await asyncio.wait([pending_read], timeout=FIRST_HEALTH_TIMEOUT_SECONDS)

    async def _monitor_health(self, health_call: Any, pending_read: "asyncio.Future[Any]") -> None:
        """Read health responses until the call ends, then report that the shard has gone. A pending read is never
        cancelled: that would end the call, which shows each side that the other is alive."""
        with suppress(grpc.aio.AioRpcError):
            while await pending_read is not grpc.aio.EOF:
                pending_read = asyncio.ensure_future(health_call.read())
        self._on_disconnect()

    async def stop_streams(self) -> None:
        step_stream, self._step_stream = self._step_stream, None
        if step_stream is not None:
            await step_stream.close()
        tasks = [task for task in (self._health_task, self._response_task) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._failure = None

    async def close(self) -> None:
        await self.stop_streams()
        await self._close_channel()


class ShardGroup:
    """Connections to all ranks of one model."""

    def __init__(self, addresses: Iterable[str], transport: str = "stream",
                 response_timeout: float = DEFAULT_RESPONSE_TIMEOUT_SECONDS,
                 credentials: ShardTlsCredentials | None = None) -> None:
        """A rank whose process does not respond for `response_timeout` seconds is given up, with all others. Ranks on
        other hosts need `credentials`."""
        self.on_disconnect: Callable[[], None] = lambda: None  # called when a rank has gone
        self.addresses = tuple(addresses)
        self._use_stream = transport == "stream"
        self.is_disconnected = False  # whether a rank has gone since the last `connect`, or does not respond
        self.hang_reason = ""  # why the processes must be replaced, since the last `connect`
        self._response_timeout = response_timeout
        self._credentials = credentials
        self._ranks: list[RankConnection] = []
        self._num_connects = 0  # number of calls of `connect`

    async def connect(self) -> None:
        """Wait until every rank listens, and watch the health of all. Raises ShardsLost if one is hung, or has gone
        while another was waited for."""
        if not self._ranks:
            self._ranks = [RankConnection(address, self._mark_disconnected, use_stream=self._use_stream,
                                          credentials=self._credentials) for address in self.addresses]
        # Restart all watches: an old one may not have noticed yet that its shard has gone.
        await asyncio.gather(*(rank.stop_streams() for rank in self._ranks))
        self.is_disconnected, self.hang_reason = False, ""
        self._num_connects += 1
        waits = [asyncio.ensure_future(rank.wait_until_ready()) for rank in self._ranks]
        try:  # a TaskGroup would swallow a cancellation that comes after the first failure
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
        if self.is_disconnected:  # by now its successor may listen, whose health is not watched
            raise ShardsLost(ShardLossReason.DEATH, "a shard went away while another was waited for")

    def watch_responsiveness(self) -> None:
        """Watch from now on, until the next `connect`, whether all ranks respond."""
        for number, rank in enumerate(self._ranks):
            rank.watch_responsiveness(self._response_timeout, partial(self._fail_all_ranks, number))

    def _fail_all_ranks(self, number: int) -> None:
        """Fail everything that waits for any rank: the others may wait for this one for ever."""
        if not self.hang_reason:
            self.hang_reason = (f"the process of shard {number} does not respond for {self._response_timeout:g} "
                                "seconds (--shard-response-timeout)")
            for rank in self._ranks:
                rank.fail(RpcFailure(TIMEOUT_STATUS, self.hang_reason))
            self._mark_disconnected()

    def make_disconnect_loss(self) -> ShardsLost:
        """Return the loss of a rank that is disconnected while no step is in flight."""
        return ShardsLost(ShardLossReason.DEATH, self.hang_reason or "a shard went away while there was nothing to do",
                          needs_restart=bool(self.hang_reason))

    def _mark_disconnected(self) -> None:
        self.is_disconnected = True
        self.on_disconnect()

    async def close(self) -> None:
        ranks, self._ranks = self._ranks, []
        await asyncio.gather(*(rank.close() for rank in ranks))

    async def call(self, request: Message, timeout: float) -> list[Any]:
        """Send a request that has no `order` number to all ranks; return the answers. Raises ShardsLost."""
        results = await self._call_all(request, timeout)
        if (loss := most_severe_loss([request], results, len(self.addresses))) is not None:
            raise loss
        return results

    async def load_or_unload(self, request: pb.LoadRequest | pb.UnloadRequest) -> str:
        """Load or unload a resource on all ranks; return why one failed, which does not end the epoch, or "". Raises
        ShardsLost if a rank has gone; that is noted only if the ranks were not connected again meanwhile."""
        num_connects = self._num_connects
        failures = [result for result in await self._call_all(request, LOAD_TIMEOUT_SECONDS)
                    if isinstance(result, RpcFailure)]
        if self.hang_reason or any(failure.code in DISCONNECTED_STATUSES for failure in failures):
            if num_connects == self._num_connects and not self.is_disconnected:
                self._mark_disconnected()
            raise ShardsLost(ShardLossReason.DEATH, "a shard went away")
        return failures[0].reason or failures[0].code.name.lower() if failures else ""

    def send(self, messages: list[Any], timeout: float) -> "asyncio.Future[Any]":
        """Send all messages to all ranks, without waiting for answers in between. The future ends with rank 0's last
        answer or ShardsLost, but only when every rank has answered every message, even if one fails: a Reset could
        otherwise overtake messages that a rank has yet to process, and leave the ranks in different states."""
        serialized = []
        for message in messages:
            verb = VERBS[type(message)][0]
            sent_message = pb.StepMessage(**{verb.lower(): message}) if self._use_stream else message
            serialized.append((verb, sent_message.SerializeToString()))
        # Rank by rank, each in the order of the messages.
        outcomes = [rank.send(verb, data, timeout) for rank in self._ranks for verb, data in serialized]
        last_answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        num_missing = len(outcomes)

        def on_outcome(_: "asyncio.Future[RpcOutcome]") -> None:
            nonlocal num_missing
            num_missing -= 1
            if num_missing or last_answer.done():
                return
            results = [outcome.result() for outcome in outcomes]
            loss = most_severe_loss(messages, results, len(self.addresses))
            if loss is None:
                last_answer.set_result(results[len(messages) - 1])
            else:
                last_answer.set_exception(loss)

        for outcome in outcomes:
            outcome.add_done_callback(on_outcome)
        return last_answer

    async def _call_all(self, message: Message, timeout: float) -> list[RpcOutcome]:
        verb, data = VERBS[type(message)][0], message.SerializeToString()
        return await asyncio.gather(*(rank.call(verb, data, timeout) for rank in self._ranks))


async def is_hung(address: str) -> bool:
    """Return whether a process accepts connections at this socket and sends nothing: gRPC's servers send first."""
    if not address.startswith(UNIX_SCHEME):
        return False
    try:
        reader, writer = await asyncio.open_unix_connection(address.removeprefix(UNIX_SCHEME))
        with closing(writer):
            await asyncio.wait_for(reader.read(1), HANG_PROBE_TIMEOUT_SECONDS)
    except TimeoutError:
        return True
    except OSError:
        pass  # no process listens yet, or it has ended
    return False


def most_severe_loss(messages: list[Any], results: list[RpcOutcome], world_size: int) -> ShardsLost | None:
    """Return the most severe loss among the results of all messages on all ranks; None if there is none."""
    losses = []
    # `results` are rank by rank, each in the order of the messages.
    for result, message in zip(results, cycle(messages), strict=False):
        if isinstance(result, RpcFailure):
            losses.append(loss_from_rpc_failure(result, message, world_size))
        elif not isinstance(result, VERBS[type(message)][1]):  # a stream may return any outcome
            losses.append(ShardsLost(ShardLossReason.DEFECT,
                                     f"{type(result).__name__} came as an answer to {type(message).__name__}"))
    if not losses:
        return None
    return max(losses, key=lambda each: (LOSS_REASONS_BY_SEVERITY.index(each.loss_reason), each.needs_restart))
