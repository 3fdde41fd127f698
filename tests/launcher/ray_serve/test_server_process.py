import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.environment_variables import python_module_command
from launcher.ray_serve.server_process import ServerProcess, ServerStartError

FAKE_SERVER = """
import os, signal, sys, time
if sys.argv[1] == "fails": sys.exit("weft: no such model")
if sys.argv[1] == "stays": signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.environ["VARIABLE"], file=sys.stderr, flush=True)
print("something else")
print("weft serves org/name on 1 shard at http://127.0.0.1:4321", flush=True)
print("x" * 200_000, flush=True)
while True: time.sleep(60)
"""
# Starts a server like a replica does, and ends without a word to it.
FAKE_REPLICA = """
import asyncio, os, sys
from launcher.ray_serve.server_process import ServerProcess
async def main():
    server = await ServerProcess.start([sys.argv[1], "runs"], {"VARIABLE": ""})
    print(server.process.pid, flush=True)
    os._exit(1)
asyncio.run(main())
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "fake.py"
    path.write_text(FAKE_SERVER)
    return str(path)


def test_server_is_ready_with_its_banner_and_ends_by_a_signal(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> tuple[str, int]:
        server = await ServerProcess.start([program, "runs"], {"VARIABLE": "its log"})
        return server.url, await server.stop(10.0)

    assert asyncio.run(run()) == ("http://127.0.0.1:4321", -signal.SIGTERM)
    assert "its log" in capsys.readouterr().err


def test_server_that_does_not_end_is_killed(program: str) -> None:
    async def run() -> int:
        return await (await ServerProcess.start([program, "stays"], {"VARIABLE": ""})).stop(0.1)

    assert asyncio.run(run()) == -signal.SIGKILL


def test_server_that_does_not_start_says_why(program: str) -> None:
    with pytest.raises(ServerStartError, match="weft serve ended with exit code 1: weft: no such model"):
        asyncio.run(ServerProcess.start([program, "fails"], {"VARIABLE": ""}))


@pytest.mark.slow
def test_server_ends_with_a_replica_that_is_killed(program: str) -> None:
    ended = subprocess.run([sys.executable, "-P", "-c", FAKE_REPLICA, program], capture_output=True, text=True,
                           check=False)
    pid = int(ended.stdout.split()[-1])
    end = time.monotonic() + 10.0
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # it is a child of this process now
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_program_does_not_start_if_its_parent_has_ended_before() -> None:
    command = [*python_module_command("launcher.ray_serve.exec_with_parent_death_signal"), "1", sys.executable,
               "-c", "print('ran')"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
