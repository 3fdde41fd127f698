"""Addresses of ranks, and the channels to them. A shard on another host has a new address with every start: the
launcher writes it into a file once all shards of that host listen, and removes the file when they are lost."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from shard.tls_credentials import TLS_NAME, ShardTlsCredentials

FILE_SCHEME = "file:"
CHECK_ADDRESS_SECONDS = 0.1  # between looks at the file of an address
REMOTE_OPTIONS = (("grpc.ssl_target_name_override", TLS_NAME), ("grpc.enable_http_proxy", 0))


def is_remote(address: str) -> bool:
    """Return whether the rank of an address is on another host."""
    return address.startswith(FILE_SCHEME)


def resolve_rank_address(address: str) -> str:
    """Return the address of a rank for gRPC, or "" while a shard on another host has none."""
    if not is_remote(address):
        return address
    try:
        return Path(address.removeprefix(FILE_SCHEME)).read_text()
    except FileNotFoundError:
        return ""


async def wait_for_address(address: str) -> str:
    """Return the address of a rank for gRPC as soon as it has one."""
    while not (found := resolve_rank_address(address)):  # noqa: ASYNC110 - another process writes the file
        await asyncio.sleep(CHECK_ADDRESS_SECONDS)
    return found


class AuthenticatedChannel:
    """Channel with TLS, whose calls carry the secret. gRPC's own credentials of calls would do the same in further
    threads."""

    def __init__(self, target: str, options: Sequence[tuple[str, Any]], credentials: ShardTlsCredentials) -> None:
        tls = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
        self._channel = grpc.aio.secure_channel(target, tls, options=[*options, *REMOTE_OPTIONS])
        self._metadata = (("authorization", f"Bearer {credentials.secret}"),)
        self.channel_ready = self._channel.channel_ready
        self.close = self._channel.close

    def unary_unary(self, method: str, **serializers: Any) -> Callable[..., Any]:
        return partial(self._channel.unary_unary(method, **serializers), metadata=self._metadata)

    def unary_stream(self, method: str, **serializers: Any) -> Callable[..., Any]:
        return partial(self._channel.unary_stream(method, **serializers), metadata=self._metadata)

    def stream_stream(self, method: str, **serializers: Any) -> Callable[..., Any]:
        return partial(self._channel.stream_stream(method, **serializers), metadata=self._metadata)


Channel: TypeAlias = grpc.aio.Channel | AuthenticatedChannel


def open_channel(address: str, target: str, options: Sequence[tuple[str, Any]],
                 credentials: ShardTlsCredentials | None) -> Channel:
    """Return a channel to the rank of `address`, which listens at `target`: with TLS and the secret if it is on another
    host."""
    if not is_remote(address):
        channel: Channel = grpc.aio.insecure_channel(target, options=options)
        return channel
    assert credentials is not None
    return AuthenticatedChannel(target, options, credentials)
