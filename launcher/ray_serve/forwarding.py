"""Requests to a server and its answers, byte for byte, as they pass between ingress and replica."""

import json
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from launcher.ray_serve.affinity import AffinityKey

NO_AFFINITY = AffinityKey()
Headers = tuple[tuple[bytes, bytes], ...]
HOP_BY_HOP_HEADERS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer",
                                b"transfer-encoding", b"upgrade"})
# The length is written anew. The body has arrived by then, so nobody waits for permission to send it.
REPLACED_REQUEST_HEADERS = HOP_BY_HOP_HEADERS | {b"content-length", b"expect"}
REPLACED_ANSWER_HEADERS = HOP_BY_HOP_HEADERS | {b"date", b"server", b"x-request-id"}  # Ray's proxy writes these
IDLE_CONNECTION_SECONDS = 15.0  # less than --keep-alive-timeout


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request as a client sent it, with its whole body."""

    method: str
    target: str  # path and query, as written
    headers: Headers
    body: bytes = field(default=b"", repr=False)
    affinity: AffinityKey = NO_AFFINITY


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Status and headers of an answer; the parts of the body follow."""

    status: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Instead of a head: the server broke the connection, or there was none, before any answer."""

    reason: str


def open_client() -> aiohttp.ClientSession:
    """Return a client that neither limits nor changes what passes."""
    return aiohttp.ClientSession(
        auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_SECONDS),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"))


async def forward(client: aiohttp.ClientSession, url: str,
                  request: ForwardedRequest) -> AsyncGenerator[AnswerHead | NoAnswer | bytes]:
    """Send a request to the server at `url` and yield its head, then the body's parts as they arrive.

    Raises aiohttp.ClientError if the answer breaks off. Leaving the generator closes the connection, and the server
    cancels the request."""
    try:
        response = await client.request(
            request.method, URL(url + request.target, encoded=True), headers=make_upstream_headers(request.headers),
            data=BytesIO(request.body) if request.body else None, allow_redirects=False)
    except (aiohttp.ClientError, OSError) as error:
        yield NoAnswer(str(error) or type(error).__name__)
        return
    try:
        yield AnswerHead(response.status, drop_headers(response.raw_headers, REPLACED_ANSWER_HEADERS))
        async for part in response.content.iter_any():
            yield part
    finally:
        response.close() if not response.content.at_eof() else response.release()


def make_upstream_headers(headers: Headers) -> CIMultiDict[str]:
    kept = drop_headers(headers, REPLACED_REQUEST_HEADERS)
    return CIMultiDict((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in kept)


def drop_headers(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Headers:
    """Return the headers without those that hold for one connection only, and others in `dropped`."""
    listed = {name.strip().lower() for key, value in headers if key.lower() == b"connection"
              for name in value.split(b",")}
    return tuple((name, value) for name, value in headers if name.lower() not in dropped | listed)


def make_error_body(target: str, message: str, error_type: str) -> bytes:
    """Return an error as OpenAI's clients expect it below /v1, and as those of text-generation-inference elsewhere."""
    body: dict[str, Any] = {"error": message, "error_type": error_type}
    if target.startswith("/v1/"):
        body = {"error": {"message": message, "type": "server_error", "param": None, "code": error_type}}
    return json.dumps(body, separators=(",", ":")).encode()
