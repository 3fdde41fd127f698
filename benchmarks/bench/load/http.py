"""HTTP/1.1 client with little CPU cost that reports each piece of a body with its time of arrival.

Benchmark and server often share a machine, so the cost matters. A kept-alive connection has one exchange at a time.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from errno import EMFILE, ENFILE
from time import perf_counter
from typing import NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

ChunkCallback = Callable[[int, bytes, float], object]  # status, a piece of the body, and its time of arrival
MAX_HEAD_BYTES = 65_536  # bytes
SHORT_REQUEST_TIMEOUT_SECONDS = 30.0  # seconds for requests that need no generation
CRLF = b"\r\n"


class RequestFailedError(Exception):
    """A request without a usable response: the server is unreachable, closed the connection, or sent what cannot be
    parsed.
    """


class StaleConnectionError(RequestFailedError):
    """A kept-alive connection was closed before any answer: the request may be sent again on another."""


class ResponseHead(NamedTuple):
    """Status line and headers of a response, parsed."""

    status: int
    content_length: int | None  # of the body; None: chunked, or until the connection is closed
    is_chunked: bool
    keeps_alive: bool  # whether the connection is kept alive
    headers: Mapping[str, str]  # names in lower case


def parse_response_head(raw: bytes) -> ResponseHead:
    status_line, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise RequestFailedError(f"this is no HTTP: {status_line[:80]!r}")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status, is_chunked = int(rest[:3]), "chunked" in headers.get("transfer-encoding", "").lower()
    content_length = 0 if status in (204, 304) else None if is_chunked else headers.get("content-length")
    keeps_alive = "close" not in headers.get("connection", "").lower() and version != "HTTP/1.0"
    return ResponseHead(status, None if content_length is None else int(content_length), is_chunked, keeps_alive,
                        headers)


class HttpConnection(asyncio.Protocol):
    """A kept-alive HTTP/1.1 connection, which has one exchange at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._body_bytes_left = 0  # bytes missing of a body of known length
        self._on_chunk: ChunkCallback | None = None
        self._response_future: asyncio.Future[ResponseHead] | None = None
        self._was_used = False
        self._is_closed = False
        self.is_reusable = False  # for another exchange

    def send(self, request: bytes, on_chunk: ChunkCallback) -> "asyncio.Future[ResponseHead]":
        """Send a request; the future gets the head of the answer when its body is complete."""
        self._response_future = future = asyncio.get_running_loop().create_future()
        self._on_chunk, self._head, self._buffer, self.is_reusable = on_chunk, None, b"", False
        if self._is_closed:
            self._fail_response(StaleConnectionError())
        else:
            self._transport.write(request)
        return future

    def abort(self) -> None:
        self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self._buffer = self._buffer + data if self._buffer else data
        try:
            if self._head is None:
                self._parse_head()
            if self._head is not None:
                self._parse_body(self._head, now)
        except (RequestFailedError, ValueError) as error:
            self._fail_response(error if isinstance(error, RequestFailedError)
                                else RequestFailedError(f"this is no HTTP: {error}"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        head = self._head
        if head is not None and head.content_length is None and not head.is_chunked and error is None:
            self._finish_response(head)
        elif self._was_used and head is None and not self._buffer:
            self._fail_response(StaleConnectionError())
        else:
            self._fail_response(RequestFailedError("the server closed the connection before its answer was complete"))

    # -- an answer

    def _parse_head(self) -> None:
        """Read the head, and skip interim responses (1xx)."""
        while self._head is None and (end := self._buffer.find(CRLF * 2)) >= 0:
            head, self._buffer = parse_response_head(self._buffer[:end]), self._buffer[end + 4:]
            if head.status >= 200:
                self._head, self._body_bytes_left = head, head.content_length or 0
        if self._head is None and len(self._buffer) > MAX_HEAD_BYTES:
            raise RequestFailedError(f"the head of an answer is longer than {MAX_HEAD_BYTES} bytes")

    def _parse_body(self, head: ResponseHead, arrived_at: float) -> None:
        if head.is_chunked:
            self._parse_chunked_body(head, arrived_at)
            return
        chunk, self._buffer = self._buffer, b""
        if head.content_length is not None:
            chunk = chunk[:self._body_bytes_left]
            self._body_bytes_left -= len(chunk)
        if chunk:
            self._report_chunk(head, chunk, arrived_at)
        if head.content_length is not None and not self._body_bytes_left:
            self._finish_response(head)

    def _parse_chunked_body(self, head: ResponseHead, arrived_at: float) -> None:
        """Report the complete chunks that have arrived as one piece."""
        data, position, pieces, is_last = self._buffer, 0, [], False
        while (line_end := data.find(CRLF, position)) >= 0:
            size = int(data[position:line_end].partition(b";")[0], 16)
            start = line_end + 2
            if size == 0:
                end = data.find(CRLF * 2, line_end)
                is_last = end >= 0
                break
            if len(data) < start + size + 2:
                break
            pieces.append(data[start:start + size])
            position = start + size + 2
        self._buffer = data[position:]
        if pieces:
            self._report_chunk(head, b"".join(pieces), arrived_at)
        if is_last:
            self._finish_response(head)

    def _report_chunk(self, head: ResponseHead, chunk: bytes, arrived_at: float) -> None:
        if self._on_chunk is not None:
            self._on_chunk(head.status, chunk, arrived_at)

    def _finish_response(self, head: ResponseHead) -> None:
        self._was_used, self.is_reusable = True, head.keeps_alive and not self._is_closed
        if self._response_future is not None and not self._response_future.done():
            self._response_future.set_result(head)
        self._on_chunk = None

    def _fail_response(self, error: RequestFailedError) -> None:
        if self._response_future is not None and not self._response_future.done():
            self._response_future.set_exception(error)
        self._on_chunk = None


def parse_port(split_url: SplitResult, default_port: int) -> int:
    try:
        port = split_url.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"--url: a port is a number from 1 to 65535, got {split_url.netloc!r}")
    return port or default_port


class HttpConnectionPool:
    """An address, with a pool of idle connections to it."""

    def __init__(self, url: str) -> None:
        split_url = urlsplit(url if "//" in url else f"http://{url}")
        if "@" in split_url.netloc:
            raise ValueError("--url holds a name or a password, which results would show; --api-key is for keys")
        if split_url.scheme not in {"http", "https"} or not split_url.hostname:
            raise ValueError(f"--url must be http://HOST:PORT or https://HOST:PORT, got {url!r}")
        self._ssl_context = ssl.create_default_context() if split_url.scheme == "https" else None
        self._host, self._port = split_url.hostname, parse_port(split_url, 443 if self._ssl_context else 80)
        self._netloc, self._base_path = split_url.netloc, split_url.path.rstrip("/")
        self._idle_connections: list[HttpConnection] = []

    def build_request(self, method: str, path: str, header_lines: str, body: bytes) -> bytes:
        head = (
            f"{method} {self._base_path}{path} HTTP/1.1\r\nHost: {self._netloc}\r\nContent-Type: application/json\r\n"
                f"{header_lines}Content-Length: {len(body)}\r\n\r\n")
        return head.encode("latin-1") + body

    async def exchange(self, request: bytes, on_chunk: ChunkCallback) -> ResponseHead:
        """Send a request and return the head of its answer. Cancellation closes the connection."""
        while self._idle_connections:
            try:
                return await self._exchange_on(self._idle_connections.pop(), request, on_chunk)
            except StaleConnectionError:
                continue
        return await self._exchange_on(await self._connect(), request, on_chunk)

    async def fetch(self, request: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer. Raises RequestFailedError after SHORT_REQUEST_TIMEOUT_SECONDS."""
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(SHORT_REQUEST_TIMEOUT_SECONDS):
                head = await self.exchange(request, lambda _, piece, __: pieces.append(piece))
                return head.status, b"".join(pieces)
        except TimeoutError:
            raise RequestFailedError(
                f"{self._host}:{self._port} does not answer within {SHORT_REQUEST_TIMEOUT_SECONDS:g} s") from None

    async def _connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(HttpConnection, self._host, self._port, ssl=self._ssl_context)
        except OSError as error:
            if error.errno in {EMFILE, ENFILE}:
                raise RequestFailedError(
                    "this side has too many connections open: raise the limit (ulimit -n)") from None
            raise RequestFailedError(
                f"nobody answers at {self._host}:{self._port}: {error.strerror or error}") from None
        return connection

    async def _exchange_on(self, connection: HttpConnection, request: bytes, on_chunk: ChunkCallback) -> ResponseHead:
        try:
            head = await connection.send(request, on_chunk)
        except asyncio.CancelledError:
            connection.abort()
            raise
        if connection.is_reusable:
            self._idle_connections.append(connection)
        else:
            connection.abort()
        return head

    def close(self) -> None:
        while self._idle_connections:
            self._idle_connections.pop().abort()
