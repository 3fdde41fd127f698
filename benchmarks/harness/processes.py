"""Servers as processes: a shard and a router, or `weft serve` as users start it, and the CPU time that they take.

All are started by their command lines; nothing is imported from them.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

HOST = "127.0.0.1"
STDERR_FD = 2  # receives the stdout of children, since ours is for the figures
SIMULATED_STEP_SECONDS = 0.005
EXIT_TIMEOUT_SECONDS = 10.0  # seconds for a child to end
SIMULATED_SHARD_COSTS = {"seconds_per_step": SIMULATED_STEP_SECONDS, "seconds_per_row": 0.0,
                         "seconds_per_chunk_token": 0.0, "seconds_per_place": 0.0, "mean_output_length": 0.0,}
MAX_ANSWER_SECONDS = 86_400.0  # an adapter may take any time to be fetched and loaded
NO_SETTINGS: Mapping[str, Any] = {}
ROUTER_CONFIG = {"hostname": HOST, "port": 0, "max_concurrent_requests": 1024, "max_batch_size": 1024,
                 "shutdown_timeout": 1.0}


def find_free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


def find_free_port() -> int:
    return find_free_ports(1)[0]


class ProcessStartError(Exception):
    """A child process ended before it was ready; the reason is on its stderr."""


@dataclass(frozen=True, slots=True)
class ServerProcesses:
    """Process ids of a router and its shard, the router's port, and the shard's log of steps."""

    router_pid: int
    shard_pid: int
    port: int
    step_log: Path

    def read_step_timestamps(self) -> "array[float]":
        """Return begin and end of every step so far, alternating, in seconds of `time.monotonic`."""
        times = array("d")
        times.frombytes(self.step_log.read_bytes())
        return times


@contextmanager
def run_router_and_shard(look_ahead: int, profile_path: str = "", settings: Mapping[str, Any] = NO_SETTINGS,
                         model: str = "", *, record_folder: str = "", shard: Mapping[str, Any] = NO_SETTINGS,
                         folder: Path | None = None) -> Iterator[ServerProcesses]:
    """Run a shard and a router as long as the block runs.

    `profile_path` is the file for the router's profile, written when it exits; `settings` are further settings of the
    router, `shard` of the shard; `model` is a folder, without one the shard simulates. The router runs in `folder`."""
    profiler = ("-m", "cProfile", "-o", profile_path) if profile_path else ()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as temporary_folder:
        socket, step_log = f"unix:{temporary_folder}/shard.sock", Path(temporary_folder, "steps")
        shard_args = {"socket": socket, "step_log": str(step_log), "simulated": SIMULATED_SHARD_COSTS, "model": model,
                      **shard}
        router_args = {"config": ROUTER_CONFIG | {"look_ahead": look_ahead, **settings}, "shards": [socket],
                       "model": model, "folder": model, "record_folder": record_folder}
        with (run_child(("-m", "shard.rpc.server"), shard_args) as (shard_pid, _),
              run_child((*profiler, "-m", "router"), router_args, folder) as (router_pid, port)):
            yield ServerProcesses(router_pid, shard_pid, int(port), step_log)


@contextmanager
def run_weft_serve(model: Path, flags: Sequence[str] = (), cache_fraction: float = 0.1) -> Iterator[str]:
    """Run a server as users start it, with this share of memory for its KV cache, and yield its URL; then stop it and
    delete its cache folder."""
    with tempfile.TemporaryDirectory() as cache_folder, convert_sigterm_to_exit():
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.cli", "serve", str(model), "--port", "0",
             "--memory-fraction", str(cache_fraction), *flags],
            stdout=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": cache_folder})
        try:
            yield f"http://{HOST}:{read_server_port(server)}"
        finally:
            terminate_process(server)


def make_adapter_flags(adapter_root: Path) -> tuple[str, ...]:
    """Return flags of a server for many adapters below a folder."""
    return ("--adapter-root", str(adapter_root), "--adapter-source", "local", "--adapter-memory-fraction", "0.7")


@contextmanager
def convert_sigterm_to_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` blocks run."""
    previous_handler = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def read_server_port(server: "subprocess.Popen[bytes]") -> int:
    assert server.stdout is not None
    for line in server.stdout:
        if match := re.search(rb"http://[^ ]*:(\d+)", line):
            return int(match[1])
    raise SystemExit("benchmarks: weft ended before it was ready")


@contextmanager
def run_child(program: Sequence[str], process_args: dict[str, Any],
              cwd: Path | None = None) -> Iterator[tuple[int, str]]:
    """Run a child process in a folder as long as the block runs; yield its process id and the word after `ready`."""
    with start_child(program, process_args, cwd) as (pid, lines):
        yield pid, wait_until_ready(lines, program)


@contextmanager
def run_children(program: Sequence[str], args_of_processes: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Run children that wait for each other before they are ready, as the ranks of one model do.

    If one ends before it is ready, the others are ended too."""
    with ThreadPoolExecutor(len(args_of_processes)) as readers, ExitStack() as stack:
        ready_pipes = [stack.enter_context(start_child(program, process_args))[1] for process_args in args_of_processes]
        for ready_future in as_completed([readers.submit(wait_until_ready, lines, program) for lines in ready_pipes]):
            ready_future.result()
        yield


@contextmanager
def start_child(program: Sequence[str], process_args: dict[str, Any],
                cwd: Path | None = None) -> Iterator[tuple[int, TextIO]]:
    """Start a child; yield its process id and the pipe on which it reports that it is ready.

    The child is ended before the pipe is closed, since another thread may be reading it."""
    ready_reader, ready_fd = os.pipe()
    parent_fd, parent_writer = os.pipe()  # never written: end of file signals to the child that this process has ended
    command = [sys.executable, "-P", *program,
               json.dumps(process_args | {"ready_fd": ready_fd, "parent_fd": parent_fd})]
    process = subprocess.Popen(
        command, pass_fds=(ready_fd, parent_fd), stdin=subprocess.DEVNULL, stdout=STDERR_FD, cwd=cwd)
    os.close(ready_fd)
    os.close(parent_fd)
    with os.fdopen(ready_reader) as lines:
        try:
            yield process.pid, lines
        finally:
            terminate_process(process)
            os.close(parent_writer)


def wait_until_ready(lines: Iterable[str], program: Sequence[str]) -> str:
    line = next((line for line in lines if not line.startswith("progress ")), "")
    word, _, ready_value = line.strip().partition(" ")
    if word != "ready":
        raise ProcessStartError(f"python {' '.join(program)} did not start: {ready_value or 'it ended'}")
    return ready_value.partition(" ")[0]


def terminate_process(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(EXIT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_process_cpu_seconds(pid: int) -> float:
    """Return user and system time of a running process with all its threads; rusage only covers ended children.

    The resolution is a nanosecond. Linux derives the clock id from the process id, see clock_getcpuclockid(3).
    """
    return time.clock_gettime((~pid << 3) | 2)


def read_cpu_seconds_by_program(ancestor_pid: int) -> dict[str, float]:
    """Return user and system time of all processes that a process has started, and of itself, by the modules that they
    run; those that run none are `other`."""
    seconds_by_program = dict[str, float]()
    for pid in list_descendants(ancestor_pid):
        with suppress(OSError):  # it has ended meanwhile
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            program = words[words.index("-m") + 1] if "-m" in words[:-1] else "other"
            seconds_by_program[program] = seconds_by_program.get(program, 0.0) + read_process_cpu_seconds(pid)
    return seconds_by_program


def list_descendants(ancestor_pid: int) -> list[int]:
    """Return a process and all that it and its children have started."""
    pids = [ancestor_pid]
    for pid in pids:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                pids += map(int, children.read_text().split())
    return pids


def read_machine_cpu_seconds() -> float:
    """Return the CPU seconds of everything that runs on this machine, in ticks of 10 ms."""
    field_names = "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"
    with open("/proc/stat", encoding="ascii") as file:
        ticks = dict(zip(field_names, map(int, file.readline().split()[1:]), strict=False))  # "user" includes guests
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) / os.sysconf("SC_CLK_TCK")
