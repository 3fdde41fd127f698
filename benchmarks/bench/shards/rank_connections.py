"""The ranks of one model without a router: started here, or found by their sockets. All receive identical messages."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
from google.protobuf.message import Message

from benchmarks.harness.processes import run_children
from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.rpc.server import GRPC_OPTIONS

UNIX_SCHEME = "unix:"
INFO_TIMEOUT_SECONDS = 10.0  # seconds for a listening shard to answer Info
REJECTION_CODES = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}
RPC_METHODS: dict[type[Message], tuple[str, type[Message]]] = {
    pb.InfoRequest: ("Info", pb.InfoAnswer), pb.WarmupRequest: ("Warmup", pb.WarmupAnswer),
    pb.ResetRequest: ("Reset", pb.ResetAnswer), pb.PrefillRequest: ("Prefill", pb.StepAnswer),
    pb.DecodeRequest: ("Decode", pb.StepAnswer), pb.FilterRequest: ("Filter", pb.Acknowledgement),
}


class ShardFailed(Exception):
    """A shard is unreachable, or one of its steps failed."""


class MessageRejected(Exception):
    """The shards are alive and reject the message."""


@dataclass(frozen=True, slots=True)
class RankReplies:
    """Every rank's answer to one message, and the seconds until all had answered."""

    answers: list[Any]
    seconds: float


class RankConnections:
    """gRPC channels to all ranks of one model. Each message is sent to all of them."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Open a channel to each rank. Call `close` only when every answer has arrived."""
        self.addresses = tuple(addresses)
        self._channels = [grpc.aio.insecure_channel(address, options=GRPC_OPTIONS) for address in addresses]
        self._calls = [
            {kind: channel.unary_unary(f"/weft.shard.Shard/{verb}", response_deserializer=answer.FromString)
             for kind, (verb, answer) in RPC_METHODS.items()}
            for channel in self._channels]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def send(self, message: Message, timeout: float | None = None) -> RankReplies:
        """Send a message to all ranks and return their answers. Raises MessageRejected or ShardFailed.

        All ranks have answered even then, so a Reset may follow."""
        message_type, serialized = type(message), message.SerializeToString()
        started_at = perf_counter()
        outcomes = await asyncio.gather(*(await_answer_or_error(calls[message_type](serialized, timeout=timeout))
                                          for calls in self._calls))
        seconds = perf_counter() - started_at
        errors = {address: error for address, error in zip(self.addresses, outcomes, strict=True)
                  if isinstance(error, grpc.aio.AioRpcError)}
        if errors:
            raise most_severe_error(errors)
        return RankReplies(outcomes, seconds)

    async def fetch_infos(self) -> list[pb.InfoAnswer]:
        """Return the InfoAnswer of each rank."""
        try:
            return (await self.send(pb.InfoRequest(), INFO_TIMEOUT_SECONDS)).answers
        except ShardFailed as error:
            raise ShardFailed(f"no shard answers at {' or '.join(self.addresses)}") from error


def check_rank_order(addresses: Sequence[str], infos: Sequence[pb.InfoAnswer]) -> None:
    """Raise ValueError unless the addresses are all ranks of one model, in order."""
    for rank, (address, info) in enumerate(zip(addresses, infos, strict=True)):
        if (info.rank, info.world_size) != (rank, len(infos)):
            raise ValueError(f"the shard at {address} is rank {info.rank} of {info.world_size}, and was named as rank "
                             f"{rank} of {len(infos)}; name all of them in the order of their ranks")


async def await_answer_or_error(call: Awaitable[Any]) -> Any:
    """Return the answer, or the error instead of raising it."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error


def most_severe_error(errors: Mapping[str, grpc.aio.AioRpcError]) -> MessageRejected | ShardFailed:
    """Return the worst of the errors by address: a rejection only if there is no other kind."""
    for address, error in errors.items():
        if error.code() not in REJECTION_CODES:
            return ShardFailed(f"the shard at {address} failed: {error.code().name.lower()}: {error.details()}")
    return MessageRejected(error.details())


@asynccontextmanager
async def connect_to_ranks(addresses: Sequence[str]) -> AsyncIterator[RankConnections]:
    ranks = RankConnections(addresses)
    try:
        yield ranks
    finally:
        await ranks.close()


@contextmanager
def start_shards(config: ShardConfig, world_size: int) -> Iterator[tuple[str, ...]]:
    """Start shards, yield their addresses, and stop the shards after the block."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        addresses = tuple(f"{UNIX_SCHEME}{folder}/shard-{rank}.sock" for rank in range(world_size))
        configs = [replace(config, rank=rank, world_size=world_size, socket=address, meeting_point=f"{folder}/meeting")
                   for rank, address in enumerate(addresses)]
        with run_children(("-m", "shard.rpc.server"), [asdict(one) for one in configs]):
            yield addresses


def to_grpc_address(socket: str) -> str:
    """Return the gRPC address of a socket; a plain path is a Unix socket."""
    return socket if ":" in socket else f"{UNIX_SCHEME}{Path(socket).absolute()}"


async def find_rank_addresses(first_address: str) -> tuple[str, ...]:
    """Return the addresses of all ranks, given rank 0's: the last number in the name of a socket is the rank."""
    async with connect_to_ranks([first_address]) as ranks:
        [info] = await ranks.fetch_infos()
    return derive_rank_addresses(first_address, info.world_size)


def derive_rank_addresses(first_address: str, world_size: int) -> tuple[str, ...]:
    if world_size == 1:
        return (first_address,)
    folder, _, name = first_address.rpartition("/")
    match = re.fullmatch(r"(.*\D|)0(\D*)", name)
    if match is None:
        raise ValueError(
            f"{first_address} has no rank 0 in its name, so where the other {world_size - 1} ranks listen is not "
                         "known; name all with --socket")
    return tuple(f"{folder}/{match[1]}{rank}{match[2]}" for rank in range(world_size))
