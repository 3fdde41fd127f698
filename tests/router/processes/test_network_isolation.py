"""Tests of isolation from the network. Some systems, such as containers, allow none."""

import socket
import subprocess
import sys

import pytest

CONNECT_PROGRAM = """
import socket, sys
from router.processes.network_isolation import leave_network
if not leave_network():
    sys.exit(3)
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5)
except OSError:
    print("refused")
"""


def test_isolated_process_reaches_nothing_and_keeps_its_open_sockets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run([sys.executable, "-Pc", CONNECT_PROGRAM, str(listener.getsockname()[1])],
                              capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("the system allows no namespaces")
    assert (done.returncode, done.stdout) == (0, "refused\n")
