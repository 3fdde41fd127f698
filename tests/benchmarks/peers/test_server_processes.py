"""Tests that a compared server is started, asked and ended, with a program that answers as one."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.harness.processes import ProcessStartError, find_free_port
from benchmarks.peers.server_processes import ServerCommand, read_memory_bytes, run_server

# It has a child, as vLLM has, which would outlive it.
SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen(["sleep", "60"])
open(sys.argv[2], "w").write(str(child.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\\n\\n')
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def make_command(program: str, *arguments: str | Path, port: int = 1) -> ServerCommand:
    return ServerCommand((sys.executable, "-c", program, str(port), *arguments), dict(os.environ),
                         f"http://127.0.0.1:{port}")


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(") ")[2][0] != "Z"


@pytest.mark.slow
def test_server_runs_until_the_block_ends_with_all_that_it_started(tmp_path: Path) -> None:
    command = make_command(SERVER, tmp_path / "pid", port=find_free_port())
    with run_server(command) as running:
        child = int((tmp_path / "pid").read_text())
        assert is_running(child)
        assert running.start_seconds > 0
        assert running.memory.peak_gb > 0.001
    assert not is_running(child)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "reason"), [
    ("raise SystemExit('no such model')", "it ended with 1; no such model"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "it ended by SIGILL; it said nothing")])
def test_server_that_ends_is_reported_with_its_last_words(program: str, reason: str) -> None:
    with pytest.raises(ProcessStartError, match=f"it did not start: {reason}"), run_server(make_command(program)):
        pass


def test_memory_of_a_process_that_has_ended_is_nothing() -> None:
    own = read_memory_bytes([os.getpid()])
    assert own > 1e6
    assert read_memory_bytes([2**22 + 1]) == 0
