"""`weft serve` as users start it, on a generated model, and the token times of its streams.

Any error ends the benchmark.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from benchmarks.harness.processes import HOST, end


@contextmanager
def served(model: Path, root: Path, flags: Sequence[str] = ()) -> Iterator[str]:
    """Run a server for adapters below `root` and yield its URL; then stop it and delete its adapter cache."""
    with tempfile.TemporaryDirectory() as cache, ended_by_exit():
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.cli", "serve", str(model), "--port", "0",
             "--adapter-root", str(root), "--adapter-source", "local", "--memory-fraction", "0.1",
             "--adapter-memory-fraction", "0.7", *flags],
            stdout=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": cache})
        try:
            yield f"http://{HOST}:{wait_for_port(server)}"
        finally:
            end(server)


@contextmanager
def ended_by_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` blocks run."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_for_port(server: "subprocess.Popen[bytes]") -> int:
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(rb"http://[^ ]*:(\d+)", line):
            return int(found[1])
    raise SystemExit("benchmarks: weft ended before it was ready")


def session(address: str) -> aiohttp.ClientSession:
    """Return a client session without limits on time and connections."""
    return aiohttp.ClientSession(address, timeout=aiohttp.ClientTimeout(total=None),
                                 connector=aiohttp.TCPConnector(limit=0))


async def token_times(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, float]]:
    """Yield the arrival time of each token of a stream, and the seconds since the one before; 0 for the first."""
    before = 0.0
    async for line in answer.content:
        if line.startswith(b"data:"):
            if b'"error"' in line:
                raise SystemExit(f"benchmarks: {line.decode()}")
            now = time.perf_counter()
            yield now, now - before if before else 0.0
            before = now
