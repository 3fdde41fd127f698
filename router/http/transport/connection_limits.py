"""Limits of HTTP connections: how many there may be, and how long a client may take to send a request or to read its
response. A connection that exceeds one is closed, if possible with a response that has the reason."""

import asyncio
import fcntl
import json
import resource
import sys
import termios
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum, auto
from http import HTTPStatus
from ipaddress import IPv6Address, IPv6Network
from itertools import islice
from typing import Any, NamedTuple, Self

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod
from aiohttp.typedefs import Handler

from router.config import RouterConfig

SWEEP_SECONDS = 1.0  # between checks of the time limits
RESERVED_DESCRIPTORS = 128  # for shards, files, grammars and the adapter store
SHARE_PER_ADDRESS = 0.5  # of the connections, that one address may have by default
MAX_EVICTION_ATTEMPTS = 8
LINGERING_SECONDS = 1.0  # for a rejected client to read the reason: to close with unread input would discard it
PROBE_PATHS = frozenset({"/live", "/ready", "/health", "/ping", "/startup"})
MAX_PROBE_PLACES = 16  # connections beyond the limits that may send a probe
PROBE_HEAD_SECONDS = 1.0  # for the head of a probe on such a connection
MAX_LINGERING = 64  # connections beyond the limits; further ones are closed at once
MAX_LATENESS_SECONDS = 1.0  # of a sweep, beyond which this process has stood still
MAX_REASON_CHARACTERS = 300  # a reason may repeat what the client sent
MAX_UNREAD_BYTES = 2**30  # of all answers, that this process keeps for clients that have not read them yet
HEAD_ENDINGS = (b"\n\r\n", b"\n\n")
DEFAULT_CONFIG = RouterConfig()

EvictableConnections = OrderedDict["Connection", None]


class ConnectionState(Enum):
    HEAD = auto()  # the head of a request is incomplete, or none has come since the connection was opened
    BODY = auto()  # a handler reads the body
    HANDLED = auto()  # a handler computes or writes the response
    IDLE = auto()  # kept alive between two requests


@dataclass(slots=True)
class ConnectionDrain:
    """Whether a server closes each connection after its next response, as it does once it accepts no more."""

    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of a server's connections, in seconds and numbers."""

    header_timeout: float = DEFAULT_CONFIG.header_timeout
    body_timeout: float = DEFAULT_CONFIG.body_timeout
    keep_alive_timeout: float = DEFAULT_CONFIG.keep_alive_timeout
    slow_client_timeout: float = DEFAULT_CONFIG.slow_client_timeout
    max_connections: int | None = DEFAULT_CONFIG.max_connections  # None: as many as descriptors allow
    max_connections_per_address: int | None = DEFAULT_CONFIG.max_connections_per_address  # None: SHARE_PER_ADDRESS

    @classmethod
    def from_config(cls, config: RouterConfig) -> Self:
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    def resolve_numbers(self) -> tuple[int, int]:
        """Return the maximum number of connections, in all and per address. Raises this process's soft limit of
        descriptors to its hard limit."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        num_allowed = max(1, hard - RESERVED_DESCRIPTORS) if hard != resource.RLIM_INFINITY else 1_000_000
        in_all = min(self.max_connections or num_allowed, num_allowed)
        return in_all, self.max_connections_per_address or max(1, int(in_all * SHARE_PER_ADDRESS))


class UnreadAnswer(NamedTuple):
    """How many bytes a client has not read, since when it is that number, and since when there are any."""

    num_bytes: int
    unchanged_since: float
    begun_at: float


class Connections:
    """All open connections of one port, at which two servers may listen during start and shutdown. While no more are
    allowed, of an address or in all, a new one takes the place of the one that has been longest without a complete
    request."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.num_lingering = self.num_probe_places = 0
        self._max_connections, self._max_per_address = limits.resolve_numbers()
        self._num_by_address: Counter[str] = Counter()
        self._num_connections = 0
        # Those that are not HANDLED, in all and by address, in the order in which they entered their state.
        self._evictable: EvictableConnections = OrderedDict()
        self._evictable_by_address: dict[str, EvictableConnections] = {}
        self._unread: dict[Connection, UnreadAnswer] = {}
        self._next_sweep_at = 0.0
        self._sweep_timer: asyncio.TimerHandle | None = None

    def add(self, connection: "Connection") -> str:
        """Count a new connection; return why it must be closed, or an empty string."""
        address = connection.address
        self._num_by_address[address] += 1
        self._num_connections += 1
        self._start_sweep_timer()
        if (self._num_by_address[address] > self._max_per_address and address
                and not evict_idle_connection(self._evictable_by_address.get(address, OrderedDict()))):
            return (f"{address} has {self._max_per_address} connections, as many as one address may "
                    "(--max-connections-per-address)")
        if self._num_connections > self._max_connections and not evict_idle_connection(self._evictable):
            return f"there are {self._max_connections} connections, as many as allowed (--max-connections)"
        return ""

    def remove(self, connection: "Connection") -> None:
        self._num_connections -= 1
        self._num_by_address[connection.address] -= 1
        if not self._num_by_address[connection.address]:
            del self._num_by_address[connection.address]
        self.unmark_evictable(connection)
        self._unread.pop(connection, None)

    def update_evictable(self, connection: "Connection") -> None:
        if connection.state is ConnectionState.HANDLED:
            self.unmark_evictable(connection)
        else:
            of_address = self._evictable_by_address.setdefault(connection.address, OrderedDict())
            for evictable in (self._evictable, of_address):
                evictable[connection] = None
                evictable.move_to_end(connection)

    def unmark_evictable(self, connection: "Connection") -> None:
        self._evictable.pop(connection, None)
        if (of_address := self._evictable_by_address.get(connection.address)) is not None:
            of_address.pop(connection, None)
            if not of_address:
                del self._evictable_by_address[connection.address]

    def watch_unread(self, connection: "Connection") -> None:
        """Disconnect the client unless it reads what is buffered for it."""
        if connection not in self._unread:
            now = asyncio.get_running_loop().time()
            self._unread[connection] = UnreadAnswer(connection.count_unread_bytes(), now, now)

    def _start_sweep_timer(self) -> None:
        if self._sweep_timer is None:
            loop = asyncio.get_running_loop()
            self._next_sweep_at = loop.time() + SWEEP_SECONDS
            self._sweep_timer = loop.call_at(self._next_sweep_at, self._sweep)

    def _sweep(self) -> None:
        """Close the connections whose time is over. If this process has stood still, what clients sent meanwhile comes
        first."""
        self._sweep_timer, now = None, asyncio.get_running_loop().time()
        if now - self._next_sweep_at <= MAX_LATENESS_SECONDS:
            for connection in [*self._evictable]:
                if connection.num_buffered_bytes:
                    self.watch_unread(connection)
                else:
                    connection.close_if_late(now)
            for connection, unread in [*self._unread.items()]:
                if not connection.num_unsent_bytes:
                    del self._unread[connection]
                elif (num_unread_bytes := connection.count_unread_bytes()) != unread.num_bytes:
                    self._unread[connection] = UnreadAnswer(num_unread_bytes, now, unread.begun_at)
                elif now - unread.unchanged_since > self.limits.slow_client_timeout:
                    connection.abort()
            self._abort_beyond_unread_limit(now)
        if self._num_connections:
            self._start_sweep_timer()

    def _abort_beyond_unread_limit(self, now: float) -> None:
        """Abort connections until the others' unread answers have at most MAX_UNREAD_BYTES. Each is one of the address
        with most unread bytes, and of these the one that has had most of them for longest."""
        num_bytes = {connection: connection.num_unsent_bytes for connection in self._unread}
        num_by_address: Counter[str] = Counter()
        for connection, number in num_bytes.items():
            num_by_address[connection.address] += number
        while sum(num_by_address.values()) > MAX_UNREAD_BYTES:
            address = max(num_by_address, key=num_by_address.__getitem__)
            slowest = max((connection for connection in num_bytes if connection.address == address),
                          key=lambda connection: num_bytes[connection] * (now - self._unread[connection].begun_at))
            slowest.abort()
            num_by_address[address] -= num_bytes.pop(slowest)


def evict_idle_connection(evictable: "EvictableConnections") -> bool:
    """Close the connection that has been longest without a complete request; return whether its place can be used for
    any request, not for a probe only."""
    for connection in [*islice(evictable, MAX_EVICTION_ATTEMPTS)]:
        if not connection.num_buffered_bytes:  # else the last response is on its way
            connection.connections.unmark_evictable(connection)
            has_any_place = not connection.refusal_reason
            connection.reject(503, "overloaded", "other connections needed the place of this one (--max-connections, "
                              "--max-connections-per-address)")
            return has_any_place
    return False


class Connection(web.RequestHandler):
    """Connection of aiohttp's server, with limits."""

    def __init__(self, server: web.Server, connections: Connections, connection_drain: ConnectionDrain,
                 **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.connections, self.connection_drain = connections, connection_drain
        self._is_lingering = False
        self.address = ""
        self.state = ConnectionState.HEAD
        self.refusal_reason = ""  # of a connection beyond the limits, which may send a probe only
        self._is_counted = False
        self._deadline = 0.0
        self._has_sent_bytes = False  # since it entered its state
        self._last_bytes = b""  # of the input
        self._open_transport: asyncio.Transport | None = None  # also while it is closed, but not yet lost
        self.num_unwritten_bytes = 0  # of a finished answer, that its handler keeps and writes as the client reads

    @property
    def num_buffered_bytes(self) -> int:
        return 0 if self._open_transport is None else self._open_transport.get_write_buffer_size()

    @property
    def num_unsent_bytes(self) -> int:
        """How much of the response is in this process."""
        return self.num_buffered_bytes + self.num_unwritten_bytes

    def count_unread_bytes(self) -> int:
        """Return how much of the response the client's machine has not taken, the kernel's buffer included."""
        if self._open_transport is None or (descriptor := self._open_transport.get_extra_info("socket").fileno()) < 0:
            return 0
        in_kernel = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
        return self.num_buffered_bytes + int.from_bytes(in_kernel, sys.byteorder)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.address = normalize_client_address(peer[0]) if isinstance(peer, tuple) else ""
        super().connection_made(transport)
        self._open_transport = self.transport
        self._is_counted = True
        reason = self.connections.add(self)
        self.enter_state(ConnectionState.HEAD)
        if reason:
            self._refuse_all_but_probes(reason)

    def _refuse_all_but_probes(self, reason: str) -> None:
        self._has_sent_bytes = True  # or will have soon
        if self.connections.num_probe_places >= MAX_PROBE_PLACES:
            self.reject(503, "overloaded", reason)
            return
        self.connections.num_probe_places += 1
        self.refusal_reason = reason
        self._deadline = asyncio.get_running_loop().time() + PROBE_HEAD_SECONDS

    def _leave_probe_place(self) -> None:
        self.connections.num_probe_places -= bool(self.refusal_reason)
        self.refusal_reason = ""

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._is_counted:
            self._is_counted = False
            self.connections.remove(self)
            self.connections.num_lingering -= self._is_lingering
            self._leave_probe_place()
            self._open_transport = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.state is ConnectionState.IDLE:
            self.enter_state(ConnectionState.HEAD)
        self._has_sent_bytes = True
        self._last_bytes = (self._last_bytes + data[-3:])[-3:]
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.connections.watch_unread(self)

    async def finish_response(self, request: web.BaseRequest, resp: web.StreamResponse,
                              start_time: float | None) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        # The next head may have begun behind this one. Behind a body, a head cannot be told from what is before it.
        has_next_head = not request.body_exists and not self._last_bytes.endswith(HEAD_ENDINGS)
        self.enter_state(ConnectionState.HEAD if has_next_head else ConnectionState.IDLE)
        self._has_sent_bytes = has_next_head
        return finished

    def enter_state(self, state: ConnectionState) -> None:
        if not self._is_counted:
            return  # a handler that ends after its connection was lost
        limits = self.connections.limits
        self.state, self._has_sent_bytes = state, False
        if state is not ConnectionState.HANDLED:
            seconds = {ConnectionState.HEAD: limits.header_timeout, ConnectionState.BODY: limits.body_timeout,
                       ConnectionState.IDLE: limits.keep_alive_timeout}[state]
            self._deadline = asyncio.get_running_loop().time() + seconds
        self.connections.update_evictable(self)

    @contextmanager
    def track_body_read(self) -> Iterator[None]:
        self.enter_state(ConnectionState.BODY)
        try:
            yield
        finally:
            self.enter_state(ConnectionState.HANDLED)

    @contextmanager
    def track_answer_write(self, num_bytes: int) -> Iterator[None]:
        """Count the bytes of a finished answer, of which the handler subtracts those that it has written."""
        self.num_unwritten_bytes = num_bytes
        try:
            yield
        finally:
            self.num_unwritten_bytes = 0

    def close_if_late(self, now: float) -> None:
        """Close the connection if the client has taken too long."""
        if now < self._deadline:
            return
        if self.refusal_reason:
            self.reject(503, "overloaded", self.refusal_reason)
            return
        limits = self.connections.limits
        part, seconds, flag = (("body", limits.body_timeout, "--body-timeout") if self.state is ConnectionState.BODY
                               else ("head", limits.header_timeout, "--header-timeout"))
        self.reject(408, "timeout", f"the {part} of the request took more than {seconds:g} seconds ({flag})")

    def reject(self, status: int, error_type: str, reason: str) -> None:
        """Close the connection, with a response if the client has sent a part of a request."""
        if self.transport is None:
            return
        self._leave_probe_place()
        if self._has_sent_bytes or self.state is ConnectionState.BODY:
            body = error_json(error_type, reason).encode()
            head = (f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n")
            self.transport.write(head.encode() + body)
            if self.connections.num_lingering < MAX_LINGERING and self.transport.can_write_eof():
                self._linger()
        self.force_close()
        self.connections.watch_unread(self)

    def _linger(self) -> None:
        """Close the connection when the client does, or after LINGERING_SECONDS. Input is discarded until then."""
        assert self.transport is not None
        self.transport.write_eof()
        self.transport = None  # nothing else is written
        self._is_lingering = True
        self.connections.num_lingering += 1
        asyncio.get_running_loop().call_later(LINGERING_SECONDS, self._end_lingering)

    def _end_lingering(self) -> None:
        if self._open_transport is not None:
            self._open_transport.close()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        if self._is_lingering:
            self._end_lingering()
        await super().shutdown(timeout)

    def abort(self) -> None:
        if self._open_transport is not None:
            self._open_transport.abort()

    def handle_error(self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None,
                     message: str | None = None) -> web.StreamResponse:
        """Return the response to input that is not HTTP, as JSON."""
        response = super().handle_error(request, status, exc, message)
        if status != HTTPStatus.BAD_REQUEST:
            return response
        fault = (message or "").partition(": b'")[0]  # what follows quotes the client
        reason = "this is not HTTP" if isinstance(exc, BadHttpMethod) else f"this is not valid HTTP: {fault}"
        json_response = web.Response(status=status, text=error_json("bad_request", reason),
                                     content_type="application/json")
        json_response.force_close()
        return json_response


@web.middleware
async def connection_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note that the connection has a request. Close it after the response if all are to be closed, or if the body was
    not read to its end: the rest may be of any length."""
    connection = find_connection(request)
    assert connection is not None, "the server makes all connections"
    connection.enter_state(ConnectionState.HANDLED)
    if connection.refusal_reason and request.path not in PROBE_PATHS:
        response: web.StreamResponse = web.Response(
            status=503, text=error_json("overloaded", connection.refusal_reason), content_type="application/json",
            headers={"Retry-After": "1"})
    else:
        response = await handler(request)
    if connection.refusal_reason or connection.connection_drain.is_draining or not request.content.is_eof():
        response.force_close()
    return response


def error_json(error_type: str, reason: str) -> str:
    """Return an error in TGI's format: which route the client wants may not be known yet."""
    return json.dumps({"error": " ".join(reason.split())[:MAX_REASON_CHARACTERS], "error_type": error_type})


def normalize_client_address(peer_address: str) -> str:
    """Return what counts as one client's address: of IPv6 the network, in which a client has any number of them."""
    if ":" not in peer_address:
        return peer_address
    address = IPv6Address(peer_address.partition("%")[0])
    return str(address.ipv4_mapped or IPv6Network((int(address), 64), strict=False))


def find_connection(request: web.BaseRequest) -> Connection | None:
    """Return the connection of a request; None if its server has no limits."""
    return request.protocol if isinstance(request.protocol, Connection) else None
