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

EVENT = b"data: {"
END = b"\r\n0\r\n\r\n"  # end of a chunked body; neither a response head nor an event ends with these bytes
OVERLAP = 6  # bytes kept from the previous read: EVENT or END may begin in them, but neither fits
MIN_TOKENS, MAX_TOKENS = 128, 384
LETTERS = "abcdefghijklmnopqrstuvwxyz     "
LENGTHS = 8, 32  # fewest and most letters of a prompt


def no_gaps() -> "array[float]":
    return array("d")


class BadAnswer(Exception):
    """An answer that makes the measurement invalid."""


class Load:
    """State shared by all streams: counts of what arrived, and the first failure."""

    def __init__(self, host: str, seed: int) -> None:
        self.host = host
        self.random = Random(seed)
        self.num_tokens = 0
        self.gaps = no_gaps()  # seconds between two tokens of an answer
        self._transports: list[asyncio.WriteTransport] = []
        self._over = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def joined(self, transport: asyncio.WriteTransport) -> None:
        self._transports.append(transport)

    def end(self) -> None:
        """Abort the connections of all streams."""
        self._over = True
        for transport in self._transports:
            transport.abort()
        self._failure.cancel()

    def fail(self, reason: str) -> None:
        if not self._over and not self._failure.done():
            self._failure.set_exception(BadAnswer(reason))

    async def last(self, seconds: float) -> None:
        """Let the streams run for `seconds`; raise the first failure."""
        failed, _ = await asyncio.wait([self._failure], timeout=seconds)
        for failure in failed:
            failure.result()

    def question(self) -> tuple[bytes, int]:
        """Return a new request and the number of tokens it asks for."""
        num_tokens = self.random.randint(MIN_TOKENS, MAX_TOKENS)
        prompt = "".join(self.random.choices(LETTERS, k=self.random.randint(*LENGTHS)))
        body = json.dumps({"inputs": f"say {prompt}", "parameters": {"max_new_tokens": num_tokens}})
        head = (f"POST /generate_stream HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n")
        return (head + body).encode(), num_tokens


class Client(asyncio.Protocol):
    """One stream: a connection that sends one request after the other."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._wanted = self._arrived = 0
        self._begun = False
        self._at = 0.0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._load.joined(self._transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            self._begin(data)
        data = self._rest + data
        if count := data.count(EVENT):
            self._note(count)
        self._rest = data[-OVERLAP:]
        if data.endswith(END):
            self._finish(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._load.fail("the server closed a connection")

    def _ask(self) -> None:
        question, self._wanted = self._load.question()
        self._arrived, self._begun, self._rest = 0, False, b""
        self._transport.write(question)

    def _begin(self, data: bytes) -> None:
        self._begun = True
        if not data.startswith(b"HTTP/1.1 200 "):
            self._load.fail(f"the server answered {data[:500].decode(errors='replace')}")

    def _note(self, count: int) -> None:
        now, load = time.perf_counter(), self._load
        if self._arrived:
            load.gaps.append(now - self._at)
        load.gaps.extend([0.0] * (count - 1))
        load.num_tokens += count
        self._arrived += count
        self._at = now

    def _finish(self, data: bytes) -> None:
        if self._arrived == self._wanted:
            self._ask()
        else:
            last = data[-500:].decode(errors="replace")
            self._load.fail(f"asked for {self._wanted} tokens, got {self._arrived} events, the last: {last}")


@asynccontextmanager
async def running(host: str, port: int, num_streams: int, seed: int) -> AsyncIterator[Load]:
    """Run `num_streams` streams until the end of the block."""
    loop, load = asyncio.get_running_loop(), Load(f"{host}:{port}", seed)
    try:
        for _ in range(num_streams):
            await loop.create_connection(lambda: Client(load), host, port)
        yield load
    finally:
        load.end()
