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

Heard = Callable[[int, bytes, float], object]  # status, a piece of the body, and its time of arrival
LONGEST_HEAD = 65_536  # bytes
PATIENCE = 30.0  # seconds for requests that need no generation
END = b"\r\n"


class NoAnswer(Exception):
    """The server is unreachable, closes the connection, or does not speak HTTP."""


class Closed(NoAnswer):
    """A kept-alive connection was closed before any answer: the request may be sent again on another."""


class Head(NamedTuple):
    status: int
    length: int | None  # of the body; None: chunked, or until the connection is closed
    chunked: bool
    keeps: bool  # whether the connection is kept alive
    fields: Mapping[str, str]  # names in lower case


def read_head(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise NoAnswer(f"this is no HTTP: {first[:80]!r}")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status, chunked = int(rest[:3]), "chunked" in fields.get("transfer-encoding", "").lower()
    length = 0 if status in (204, 304) else None if chunked else fields.get("content-length")
    keeps = "close" not in fields.get("connection", "").lower() and version != "HTTP/1.0"
    return Head(status, None if length is None else int(length), chunked, keeps, fields)


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._rest = b""
        self._head: Head | None = None
        self._left = 0  # bytes missing of a body of known length
        self._heard: Heard | None = None
        self._over: asyncio.Future[Head] | None = None
        self._used = False
        self._gone = False
        self.is_free = False  # for another exchange

    def ask(self, request: bytes, heard: Heard) -> "asyncio.Future[Head]":
        """Send a request; the future gets the head of the answer when its body is complete."""
        self._over = over = asyncio.get_running_loop().create_future()
        self._heard, self._head, self._rest, self.is_free = heard, None, b"", False
        if self._gone:
            self._fail(Closed())
        else:
            self._transport.write(request)
        return over

    def abort(self) -> None:
        self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self._rest = self._rest + data if self._rest else data
        try:
            if self._head is None:
                self._begin()
            if self._head is not None:
                self._go_on(self._head, now)
        except (NoAnswer, ValueError) as error:
            self._fail(error if isinstance(error, NoAnswer) else NoAnswer(f"this is no HTTP: {error}"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True
        head = self._head
        if head is not None and head.length is None and not head.chunked and error is None:
            self._end(head)
        elif self._used and head is None and not self._rest:
            self._fail(Closed())
        else:
            self._fail(NoAnswer("the server closed the connection before its answer was complete"))

    # -- an answer

    def _begin(self) -> None:
        """Read the head, and skip interim responses (1xx)."""
        while self._head is None and (end := self._rest.find(END * 2)) >= 0:
            head, self._rest = read_head(self._rest[:end]), self._rest[end + 4:]
            if head.status >= 200:
                self._head, self._left = head, head.length or 0
        if self._head is None and len(self._rest) > LONGEST_HEAD:
            raise NoAnswer(f"the head of an answer is longer than {LONGEST_HEAD} bytes")

    def _go_on(self, head: Head, now: float) -> None:
        if head.chunked:
            self._chunks(head, now)
            return
        piece, self._rest = self._rest, b""
        if head.length is not None:
            piece = piece[:self._left]
            self._left -= len(piece)
        if piece:
            self._tell(head, piece, now)
        if head.length is not None and not self._left:
            self._end(head)

    def _chunks(self, head: Head, now: float) -> None:
        """Report the complete chunks that have arrived as one piece."""
        data, at, pieces, is_last = self._rest, 0, [], False
        while (line := data.find(END, at)) >= 0:
            size = int(data[at:line].partition(b";")[0], 16)
            begin = line + 2
            if size == 0:
                end = data.find(END * 2, line)
                is_last = end >= 0
                break
            if len(data) < begin + size + 2:
                break
            pieces.append(data[begin:begin + size])
            at = begin + size + 2
        self._rest = data[at:]
        if pieces:
            self._tell(head, b"".join(pieces), now)
        if is_last:
            self._end(head)

    def _tell(self, head: Head, piece: bytes, now: float) -> None:
        if self._heard is not None:
            self._heard(head.status, piece, now)

    def _end(self, head: Head) -> None:
        self._used, self.is_free = True, head.keeps and not self._gone
        if self._over is not None and not self._over.done():
            self._over.set_result(head)
        self._heard = None

    def _fail(self, error: NoAnswer) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)
        self._heard = None


def port_of(parts: SplitResult, default: int) -> int:
    try:
        found = parts.port
    except ValueError:
        found = 0
    if found == 0:
        raise ValueError(f"--url: a port is a number from 1 to 65535, got {parts.netloc!r}")
    return found or default


class Server:
    """An address, with a pool of idle connections to it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if "@" in parts.netloc:
            raise ValueError("--url holds a name or a password, which results would show; --api-key is for keys")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"--url must be http://HOST:PORT or https://HOST:PORT, got {url!r}")
        self._secure = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, port_of(parts, 443 if self._secure else 80)
        self._name, self._root = parts.netloc, parts.path.rstrip("/")
        self._free: list[Connection] = []

    def request(self, method: str, path: str, fields: str, body: bytes) -> bytes:
        head = (f"{method} {self._root}{path} HTTP/1.1\r\nHost: {self._name}\r\nContent-Type: application/json\r\n"
                f"{fields}Content-Length: {len(body)}\r\n\r\n")
        return head.encode("latin-1") + body

    async def exchange(self, request: bytes, heard: Heard) -> Head:
        """Send a request and return the head of its answer. Cancellation closes the connection."""
        while self._free:
            try:
                return await self._on(self._free.pop(), request, heard)
            except Closed:
                continue
        return await self._on(await self._connect(), request, heard)

    async def whole(self, request: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer. Raises NoAnswer after PATIENCE seconds."""
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(PATIENCE):
                head = await self.exchange(request, lambda _, piece, __: pieces.append(piece))
                return head.status, b"".join(pieces)
        except TimeoutError:
            raise NoAnswer(f"{self._host}:{self._port} does not answer within {PATIENCE:g} s") from None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._secure)
        except OSError as error:
            if error.errno in {EMFILE, ENFILE}:
                raise NoAnswer("this side has too many connections open: raise the limit (ulimit -n)") from None
            raise NoAnswer(f"nobody answers at {self._host}:{self._port}: {error.strerror or error}") from None
        return connection

    async def _on(self, connection: Connection, request: bytes, heard: Heard) -> Head:
        try:
            head = await connection.ask(request, heard)
        except asyncio.CancelledError:
            connection.abort()
            raise
        if connection.is_free:
            self._free.append(connection)
        else:
            connection.abort()
        return head

    def close(self) -> None:
        while self._free:
            self._free.pop().abort()
