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

from benchmarks.harness.processes import HOST, terminate_process


@contextmanager
def run_weft_serve(model: Path, adapter_root: Path, flags: Sequence[str] = ()) -> Iterator[str]:
    """Run a server for adapters below `adapter_root` and yield its URL; then stop it and delete its adapter cache."""
    with tempfile.TemporaryDirectory() as cache_folder, convert_sigterm_to_exit():
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.cli", "serve", str(model), "--port", "0",
             "--adapter-root", str(adapter_root), "--adapter-source", "local", "--memory-fraction", "0.1",
             "--adapter-memory-fraction", "0.7", *flags],
            stdout=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": cache_folder})
        try:
            yield f"http://{HOST}:{wait_for_port(server)}"
        finally:
            terminate_process(server)


@contextmanager
def convert_sigterm_to_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` blocks run."""
    previous_handler = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def wait_for_port(server: "subprocess.Popen[bytes]") -> int:
    assert server.stdout is not None
    for line in server.stdout:
        if match := re.search(rb"http://[^ ]*:(\d+)", line):
            return int(match[1])
    raise SystemExit("benchmarks: weft ended before it was ready")


def make_unlimited_session(base_url: str) -> aiohttp.ClientSession:
    """Return a client session without limits on time and connections."""
    return aiohttp.ClientSession(base_url, timeout=aiohttp.ClientTimeout(total=None),
                                 connector=aiohttp.TCPConnector(limit=0))


async def iter_token_times(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, float]]:
    """Yield the arrival time of each token of a stream, and the seconds since the one before; 0 for the first."""
    previous = 0.0
    async for line in response.content:
        if line.startswith(b"data:"):
            if b'"error"' in line:
                raise SystemExit(f"benchmarks: {line.decode()}")
            now = time.perf_counter()
            yield now, now - previous if previous else 0.0
            previous = now
