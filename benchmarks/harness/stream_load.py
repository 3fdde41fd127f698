"""Load generator: streams that send a request, read its answer and send the next, over kept-alive connections.

It shares the machine with the server that it measures, so it parses as little as possible: it counts events and notes
when they arrive. An answer with another number of tokens than requested ends the run with an error.
"""

import asyncio
import json
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import cast

EVENT_START = b"data: {"
BODY_END = b"\r\n0\r\n\r\n"  # end of a chunked body; neither a response head nor an event ends with these bytes
# bytes kept from the previous read: EVENT_START or BODY_END may begin in them, but neither fits
NUM_OVERLAP_BYTES = 6
MIN_TOKENS, MAX_TOKENS = 128, 384
PROMPT_LETTERS = "abcdefghijklmnopqrstuvwxyz     "
PROMPT_LENGTH_RANGE = 8, 32  # fewest and most letters of a prompt


def make_empty_gaps() -> "array[float]":
    return array("d")


class InvalidAnswerError(ValueError):
    """An answer that makes the measurement invalid."""


class StreamLoad:
    """State shared by all streams: counts of what arrived, and the first failure."""

    def __init__(self, host: str, seed: int) -> None:
        self.host = host
        self.random = Random(seed)
        self.num_tokens = 0
        self.token_gaps = make_empty_gaps()  # seconds between two tokens of an answer
        self._transports: list[asyncio.WriteTransport] = []
        self._is_stopped = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add_transport(self, transport: asyncio.WriteTransport) -> None:
        self._transports.append(transport)

    def abort_connections(self) -> None:
        """Abort the connections of all streams."""
        self._is_stopped = True
        for transport in self._transports:
            transport.abort()
        self._failure.cancel()

    def fail(self, reason: str) -> None:
        if not self._is_stopped and not self._failure.done():
            self._failure.set_exception(InvalidAnswerError(reason))

    async def run_for(self, seconds: float) -> None:
        """Let the streams run for `seconds`; raise the first failure."""
        failures, _ = await asyncio.wait([self._failure], timeout=seconds)
        for failure in failures:
            failure.result()

    def make_request(self) -> tuple[bytes, int]:
        """Return a new request and the number of tokens it asks for."""
        num_tokens = self.random.randint(MIN_TOKENS, MAX_TOKENS)
        prompt = "".join(self.random.choices(PROMPT_LETTERS, k=self.random.randint(*PROMPT_LENGTH_RANGE)))
        body = json.dumps({"inputs": f"say {prompt}", "parameters": {"max_new_tokens": num_tokens}})
        head = (f"POST /generate_stream HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n")
        return (head + body).encode(), num_tokens


class StreamConnection(asyncio.Protocol):
    """One stream: a connection that sends one request after the other."""

    def __init__(self, load: StreamLoad) -> None:
        self._load = load
        self._num_requested_tokens = self._num_received_tokens = 0
        self._has_checked_status = False
        self._last_token_at = 0.0
        self._previous_tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._load.add_transport(self._transport)
        self._send_request()

    def data_received(self, data: bytes) -> None:
        if not self._has_checked_status:
            self._check_status(data)
        data = self._previous_tail + data
        if count := data.count(EVENT_START):
            self._count_tokens(count)
        self._previous_tail = data[-NUM_OVERLAP_BYTES:]
        if data.endswith(BODY_END):
            self._finish_response(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._load.fail("the server closed a connection")

    def _send_request(self) -> None:
        request, self._num_requested_tokens = self._load.make_request()
        self._num_received_tokens, self._has_checked_status, self._previous_tail = 0, False, b""
        self._transport.write(request)

    def _check_status(self, data: bytes) -> None:
        self._has_checked_status = True
        if not data.startswith(b"HTTP/1.1 200 "):
            self._load.fail(f"the server answered {data[:500].decode(errors='replace')}")

    def _count_tokens(self, num_tokens: int) -> None:
        now, load = time.perf_counter(), self._load
        if self._num_received_tokens:
            load.token_gaps.append(now - self._last_token_at)
        load.token_gaps.extend([0.0] * (num_tokens - 1))
        load.num_tokens += num_tokens
        self._num_received_tokens += num_tokens
        self._last_token_at = now

    def _finish_response(self, data: bytes) -> None:
        if self._num_received_tokens == self._num_requested_tokens:
            self._send_request()
        else:
            last = data[-500:].decode(errors="replace")
            self._load.fail(f"asked for {self._num_requested_tokens} tokens, got {self._num_received_tokens} events, "
                            f"the last: {last}")


@asynccontextmanager
async def run_background_streams(host: str, port: int, num_streams: int, seed: int) -> AsyncIterator[StreamLoad]:
    """Run `num_streams` streams until the end of the block."""
    loop, load = asyncio.get_running_loop(), StreamLoad(f"{host}:{port}", seed)
    try:
        for _ in range(num_streams):
            await loop.create_connection(lambda: StreamConnection(load), host, port)
        yield load
    finally:
        load.abort_connections()
