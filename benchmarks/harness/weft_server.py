"""`weft serve` as users start it, on a generated model."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.processes import HOST, terminate_process

MAX_ANSWER_SECONDS = 86_400.0  # an adapter may take any time to be fetched and loaded


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
