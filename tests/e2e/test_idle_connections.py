"""Thousands of idle connections, more than the server has descriptors for: probes are answered, and requests served."""

import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.servers.weft_process import SIMULATED_MODEL, WEFT_EXECUTABLE, run_weft_process

PROBE_TIMEOUT_SECONDS = 5.0  # of which 0.1 are asked for on a machine that does nothing else
LIMIT_DESCRIPTORS = ("import os, resource, sys; limit = int(sys.argv[1]); "
                     "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)); os.execv(sys.argv[2], sys.argv[2:])")


def open_idle_connections(stack: ExitStack, port: int, num_connections: int) -> None:
    for _ in range(num_connections):
        connection = stack.enter_context(socket.socket())
        connection.connect(("127.0.0.1", port))


def probe(port: int) -> float:
    """Return the seconds until `/live` is answered over a new connection."""
    started_at = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=PROBE_TIMEOUT_SECONDS) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    return time.monotonic() - started_at


@contextmanager
def raised_descriptor_limit() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def check_idle_connections(tmp_path: Path, num_connections: int, num_descriptors: int) -> None:
    """Open idle connections to a server with so many descriptors; it has to answer probes and requests meanwhile."""
    command = (sys.executable, "-c", LIMIT_DESCRIPTORS, str(num_descriptors), str(WEFT_EXECUTABLE))
    with ExitStack() as stack, run_weft_process(tmp_path, SIMULATED_MODEL, command=command) as weft:
        seconds = []
        for _ in range(10):
            open_idle_connections(stack, weft.port, num_connections // 10)
            seconds.append(probe(weft.port))
        print(f"probes beside {num_connections} idle connections, {num_descriptors} descriptors: {max(seconds):.3f} s")
        assert weft.generate(5) == "terry"


def test_probes_are_answered_while_idle_connections_use_all_descriptors(tmp_path: Path) -> None:
    check_idle_connections(tmp_path, 800, 400)


@pytest.mark.long
@pytest.mark.parametrize("num_descriptors", [15_000, 4_096])
def test_ten_thousand_idle_connections(tmp_path: Path, num_descriptors: int) -> None:
    with raised_descriptor_limit() as hard:
        if hard < 12_000:
            pytest.skip(f"this process may open {hard} files")
        check_idle_connections(tmp_path, 10_000, min(num_descriptors, hard))
