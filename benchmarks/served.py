"""`weft serve` as users start it, on a model that was made on the spot, and the tokens of its streams.

Knows nothing of what is measured. What goes wrong ends the benchmark.
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

from benchmarks.processes import HOST, end


@contextmanager
def served(model: Path, root: Path, flags: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server for adapters below `root`. What it keeps of them goes with it, and it with us."""
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
    """SIGTERM ends what stands in `finally`, too."""
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
    """That waits for as long as it takes."""
    return aiohttp.ClientSession(address, timeout=aiohttp.ClientTimeout(total=None),
                                 connector=aiohttp.TCPConnector(limit=0))


async def token_times(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, float]]:
    """Of a stream: when each token came, and how long after the one before; 0 for the first."""
    before = 0.0
    async for line in answer.content:
        if line.startswith(b"data:"):
            if b'"error"' in line:
                raise SystemExit(f"benchmarks: {line.decode()}")
            now = time.perf_counter()
            yield now, now - before if before else 0.0
            before = now
