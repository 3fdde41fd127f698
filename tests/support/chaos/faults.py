"""Faults carried out on a running server: signals, limits of the system, and clients that misbehave."""

import asyncio
import gzip
import json
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from support.chaos.fault_plan import Fault
from support.chaos.server import ChaosServer, list_descendants

SLOW_STOP_SECONDS, SLOW_RUN_SECONDS = 0.06, 0.04  # a slow shard is stopped for 60 % of the time
STREAM_HEAD = (b"POST /generate_stream HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
               b"Content-Length: %d\r\n\r\n")
UNLOAD = b"DELETE /v1/adapters/%b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
ADAPTER_NAMES = (b"json", b"kjv", b"pirate", b"shout")
HOSTILE_HEADERS = b"Content-Type: application/json\r\nConnection: close\r\n"
REFUSALS = {b"400", b"404", b"408", b"413", b"414", b"415", b"422", b"424", b"429", b"431", b"503"}
NUM_HOSTILE, NUM_SLOW = 12, 6


@dataclass(slots=True)
class FaultRecord:
    """A fault that was carried out."""

    fault: Fault
    began_at: float
    has_victim: bool = True  # a compiler can only be killed when there is one
    recovered_after: float | None = None  # seconds from the beginning until a probe sent afterwards was answered


@dataclass(slots=True)
class FaultInjector:
    """Carries out faults; `drop_connections` is the load's, which knows the connections of its clients."""

    server: ChaosServer
    drop_connections: Callable[[int], None]
    records: list[FaultRecord] = field(default_factory=list)
    descriptor_faults: list[tuple[float, float]] = field(default_factory=list)  # when the router had none left
    problems: list[str] = field(default_factory=list)

    async def inject(self, fault: Fault) -> None:
        record = FaultRecord(fault, time.monotonic())
        self.records.append(record)
        action, _, rest = fault.kind.partition(" ")
        method: Callable[[Fault, str], Awaitable[bool]] = {
            "kill": self._kill, "stop": self._stop}.get(action) or getattr(self, f"_{fault.kind.replace(' ', '_')}")
        record.has_victim = await method(fault, rest.removesuffix(" for long"))

    def _choose_pid(self, role: str, choice: int) -> int | None:
        pids = self.server.find_pids(role)
        return pids[choice % len(pids)] if pids else None

    async def _kill(self, fault: Fault, role: str) -> bool:
        pid = self._choose_pid(role, fault.choice)
        if pid is None:
            return False
        return send_signal(pid, signal.SIGKILL)

    async def _stop(self, fault: Fault, role: str) -> bool:
        pid = self._choose_pid(role, fault.choice)
        if pid is None or not send_signal(pid, signal.SIGSTOP):
            return False
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            send_signal(pid, signal.SIGCONT)
        return True

    async def _slow_shard(self, fault: Fault, _: str) -> bool:
        pid, end = self._choose_pid("shard", fault.choice), time.monotonic() + fault.seconds
        if pid is None:
            return False
        while time.monotonic() < end and send_signal(pid, signal.SIGSTOP):
            try:
                await asyncio.sleep(SLOW_STOP_SECONDS)
            finally:
                send_signal(pid, signal.SIGCONT)
            await asyncio.sleep(SLOW_RUN_SECONDS)
        return True

    async def _full_disk(self, fault: Fault, _: str) -> bool:
        """No process of the server can write a byte to a file. Processes that are started meanwhile inherit this."""
        pids = [self.server.pid, *list_descendants(self.server.pid)]
        set_soft_limit(pids, resource.RLIMIT_FSIZE, 0)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            pids = [self.server.pid, *list_descendants(self.server.pid)]
            set_soft_limit(pids, resource.RLIMIT_FSIZE, None)
        return True

    async def _no_descriptors(self, fault: Fault, _: str) -> bool:
        """The router can open one more file or socket."""
        pid = self._choose_pid("router", 0)
        if pid is None:
            return False
        began_at = time.monotonic()
        with suppress(ProcessLookupError, FileNotFoundError):
            used = {*map(int, os.listdir(f"/proc/{pid}/fd"))}
            set_soft_limit([pid], resource.RLIMIT_NOFILE, min({*range(len(used) + 1)} - used) + 1)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            set_soft_limit([pid], resource.RLIMIT_NOFILE, None)
            self.descriptor_faults.append((began_at, time.monotonic()))
        return True

    async def _drop_connections(self, fault: Fault, _: str) -> bool:
        self.drop_connections(fault.choice)
        return True

    async def _unload_adapters(self, fault: Fault, _: str) -> bool:
        """Adapters are unloaded while requests use them, and come back with the next request."""
        for status in await asyncio.gather(*(self._fetch_status(UNLOAD % name) for name in ADAPTER_NAMES)):
            if status not in REFUSALS | {b"", b"200", b"204", b"409"}:
                self.problems.append(f"DELETE /v1/adapters got {status!r}")
        return True

    async def _hostile_bodies(self, fault: Fault, _: str) -> bool:
        bodies = make_hostile_requests()
        chosen = [bodies[(fault.choice + number) % len(bodies)] for number in range(NUM_HOSTILE)]
        for error in await asyncio.gather(*(self._send_hostile(request) for request in chosen)):
            if error:
                self.problems.append(error)
        return True

    async def _send_hostile(self, request: bytes) -> str:
        """Send a request that must be refused; return what was wrong with the refusal."""
        status = await self._fetch_status(request)
        return f"hostile request {request[:60]!r} got {status!r}" if status and status not in REFUSALS else ""

    async def _fetch_status(self, request: bytes) -> bytes:
        """Return the status of an answer; nothing if there was none, as the router was killed or stopped meanwhile."""
        head = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(60.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
                writer.write(request)
                head = await reader.readline()
                writer.close()
        return b"".join(head.split()[1:2])

    async def _slow_clients(self, fault: Fault, _: str) -> bool:
        """Clients that send a byte now and then, and clients that ask for a stream and do not read it."""
        writers = []
        body = json.dumps({"inputs": "Once", "parameters": {"max_new_tokens": 800}}).encode()
        with suppress(OSError, TimeoutError):
            for number in range(NUM_SLOW):
                async with asyncio.timeout(5.0):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=1024)
                writers.append(writer)
                writer.write(STREAM_HEAD % len(body) + (body if number % 2 else b""))
        await asyncio.sleep(fault.seconds)
        for writer in writers:
            writer.transport.abort()
        return True


def send_signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def set_soft_limit(pids: list[int], kind: int, soft: int | None) -> None:
    """Set a limit of running processes; None sets it to the hard limit."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            _, hard = resource.prlimit(pid, kind)
            resource.prlimit(pid, kind, (hard if soft is None else soft, hard))


def make_hostile_requests() -> list[bytes]:
    """Return requests that no server answers with 200."""
    bodies = [
        ("/generate", b"[" * 100_000, b""),
        ("/generate", b'{"inputs": "' + b"a" * 3_000_000 + b'"}', b""),
        ("/generate", b"\xff\xfe\x00", b""),
        ("/generate", gzip.compress(b" " * 60_000_000), b"Content-Encoding: gzip\r\n"),
        ("/generate", gzip.compress(b'{"inputs": "hi"}')[:-9], b"Content-Encoding: gzip\r\n"),
        ("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": []}] * 20_000}).encode(), b""),
        ("/v1/chat/completions", json.dumps({"messages": [], "tools": [{}] * 10_000}).encode(), b""),
        ("/generate", json.dumps({"inputs": "a", "parameters": {"grammar": {
            "type": "regex", "value": "(" * 5000}}}).encode(), b""),
        ("/v1/completions", json.dumps({"prompt": [1e400]}).encode(), b""),
        ("/generate", json.dumps({"inputs": "a", "parameters": {"adapter_id": "../../etc"}}).encode(), b""),
    ]
    requests = [f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n".encode()
                + HOSTILE_HEADERS + extra + b"\r\n" + body for path, body, extra in bodies]
    return [*requests, b"GARBAGE\r\n\r\n", b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
            b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"]
