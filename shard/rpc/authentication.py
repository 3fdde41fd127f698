"""Authentication of callers that are not on this machine: TLS with a certificate on both sides, and the shared secret
as the bearer token of every call."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from shard.tls_credentials import CREDENTIALS_FLAG, ShardTlsCredentials, is_local_address

BEARER_PREFIX = "Bearer "
AUTHORIZATION_KEY = "authorization"


class SecretInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # ships no types
    """Refusal of all calls that lack the secret, whatever their method, before anything of them is read."""

    def __init__(self, credentials: ShardTlsCredentials) -> None:
        self._credentials = credentials

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        metadata = dict(handler_call_details.invocation_metadata)
        token = metadata.get(AUTHORIZATION_KEY, "")
        if isinstance(token, str) and self._credentials.accepts(token.removeprefix(BEARER_PREFIX)):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(refuse_call)


async def refuse_call(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the call has not the secret of this group of hosts")


def make_server_credentials(credentials: ShardTlsCredentials) -> grpc.ServerCredentials:
    """Return TLS settings that refuse clients without a certificate of the same CA."""
    return grpc.ssl_server_credentials([(credentials.key, credentials.certificate)], credentials.ca,
                                       require_client_auth=True)


def check_address_is_protected(address: str, credentials: ShardTlsCredentials | None) -> None:
    """Raise ValueError for an address that other machines can reach, without credentials."""
    if credentials is None and not is_local_address(address):
        raise ValueError(f"a shard listens at {address} only with TLS and a secret, which {CREDENTIALS_FLAG} sets; "
                         "without them it takes a unix socket or a loopback address")
