"""The server under test: a launcher with folders of its own, its processes by role, and what they hold."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.process_list import list_child_pids, read_command_line
from support.servers.weft_process import iter_banner_lines

PROGRAM = Path(__file__).with_name("unlimited_restarts.py")
ROLE_BY_MODULE = {"router": "router", "shard.rpc.server": "shard", "router.grammars.compiler_process": "compiler",
                  "router.text.chat_template_process": "renderer", "launcher.adapters.store_process": "adapter store"}
STOP_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process holds."""

    pid: int
    rss_bytes: int
    num_descriptors: int
    num_threads: int


class ChaosServer:
    """A running `weft serve` of the demo model and its adapters."""

    def __init__(self, folder: Path, num_shard: int) -> None:
        self.folder, self.log_path = folder, folder / "log"
        self.temporary_folder = folder / "tmp"
        self.temporary_folder.mkdir(parents=True)
        self._shared_memory = {*os.listdir("/dev/shm")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", PROGRAM, "serve", "--port", "0", "--num-shard", f"{num_shard}", "--threads", "1"],
            cwd=folder, text=True, stdout=subprocess.PIPE, stderr=self.log_path.open("w"),
            env={**os.environ, "TMPDIR": f"{self.temporary_folder}", "XDG_CACHE_HOME": f"{folder / 'cache'}"})
        assert self._process.stdout is not None
        banner = [*iter_banner_lines(self._process.stdout)]
        if not banner:
            raise RuntimeError(f"the server did not start:\n{self.log_path.read_text()[-3000:]}")
        self.port = int(banner[0].rsplit(":", 1)[-1])
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def find_pids(self, role: str) -> list[int]:
        """Return the processes of a role: launcher, router, shard, compiler, renderer or adapter store."""
        if role == "launcher":
            return [self.pid]
        return [pid for pid in list_descendants(self.pid) if find_role(pid) == role]

    def measure(self, role: str) -> ProcessUse | None:
        """Return what the first process of a role holds, None if there is none now."""
        for pid in self.find_pids(role)[:1]:
            with suppress(FileNotFoundError, ProcessLookupError, KeyError):  # it is ending
                return measure_process(pid)
        return None

    def list_tracebacks(self) -> list[str]:
        """Return the last line of each traceback in the log."""
        last_lines, is_inside = [], False
        for line in self.log_path.read_text(errors="replace").splitlines():
            if line.startswith("Traceback"):
                is_inside = True
            elif is_inside and line and not line.startswith((" ", "|", "+")):
                last_lines.append(line[:200])
                is_inside = False
        return last_lines

    def stop(self) -> list[str]:
        """Stop the server; return what it leaves behind: processes, temporary files, shared memory, an exit code."""
        descendants = list_descendants(self.pid)
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end = time.monotonic() + 10.0
        while (alive := [pid for pid in descendants if find_role(pid)]) and time.monotonic() < end:
            time.sleep(0.05)
        leftovers = [f"process {pid} {find_role(pid)}" for pid in alive]
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        leftovers += [f"temporary file {name}" for name in os.listdir(self.temporary_folder)]
        leftovers += [f"shared memory {name}" for name in {*os.listdir("/dev/shm")} - self._shared_memory
                      if "weft" in name]
        if self._process.returncode != 0:
            leftovers.append(f"exit code {self._process.returncode}")
        if self._process.stdout is not None:
            self._process.stdout.close()
        return leftovers


@contextmanager
def run_chaos_server(folder: Path, num_shard: int) -> Iterator[ChaosServer]:
    """Run a server; whoever wants to know what it leaves behind stops it before the end of the block."""
    server = ChaosServer(folder, num_shard)
    try:
        yield server
    finally:
        if server.is_running:
            server.stop()


def list_descendants(pid: int) -> list[int]:
    try:
        children = list_child_pids(pid)
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*children, *(descendant for child in children for descendant in list_descendants(child))]


def find_role(pid: int) -> str:
    """Return the role of a process; empty if it has ended or is none of weft's."""
    words = read_command_line(pid)
    return next((role for module, role in ROLE_BY_MODULE.items() if module in words[1:]), "")


def measure_process(pid: int) -> ProcessUse:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return ProcessUse(pid, int(status["VmRSS"].split()[0]) * 1024, len(os.listdir(f"/proc/{pid}/fd")),
                      int(status["Threads"]))
