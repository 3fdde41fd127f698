"""A shard and a router as processes, as in service, and the CPU time that the system reports for them.

Both are started by their command lines; nothing is imported from them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

HOST = "127.0.0.1"
STDERR = 2  # receives the stdout of children, since ours is for the figures
STEP_SECONDS = 0.005
PATIENCE = 10.0  # seconds for a child to end
SHARD = {
    "seconds_per_step": STEP_SECONDS, "seconds_per_row": 0.0, "seconds_per_chunk_token": 0.0, "seconds_per_place": 0.0,
    "mean_output_length": 0.0,
}
NOTHING: Mapping[str, Any] = {}
ROUTER = {"hostname": HOST, "port": 0, "max_concurrent_requests": 1024, "max_batch_size": 1024, "shutdown_timeout": 1.0}


class NotStarted(Exception):
    """A child process ended before it was ready; the reason is on its stderr."""


@dataclass(frozen=True, slots=True)
class Server:
    """Process ids of a router and its shard, the router's port, and the shard's log of steps."""

    router: int
    shard: int
    port: int
    steps: Path

    def step_times(self) -> "array[float]":
        """Return begin and end of every step so far, alternating, in seconds of `time.monotonic`."""
        times = array("d")
        times.frombytes(self.steps.read_bytes())
        return times


@contextmanager
def serving(look_ahead: int, profile: str = "", settings: Mapping[str, Any] = NOTHING, model: str = "", *,
            record_folder: str = "", shard: Mapping[str, Any] = NOTHING,
            folder: Path | None = None) -> Iterator[Server]:
    """Run a shard and a router as long as the block runs.

    `profile` is the file for the router's profile, written when it exits; `settings` are further settings of the
    router, `shard` of the shard; `model` is a folder, without one the shard simulates. The router runs in `folder`."""
    profiler = ("-m", "cProfile", "-o", profile) if profile else ()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as place:
        socket, steps = f"unix:{place}/shard.sock", Path(place, "steps")
        shard_order = {"socket": socket, "step_log": str(steps), "simulated": SHARD, "model": model, **shard}
        router_order = {"config": ROUTER | {"look_ahead": look_ahead, **settings}, "shards": [socket], "model": model,
                        "folder": model, "record_folder": record_folder}
        with (child(("-m", "shard.rpc.server"), shard_order) as (shard_id, _),
              child((*profiler, "-m", "router"), router_order, folder) as (router_id, port)):
            yield Server(router_id, shard_id, int(port), steps)


@contextmanager
def child(program: Sequence[str], order: dict[str, Any], folder: Path | None = None) -> Iterator[tuple[int, str]]:
    """Run a child process in a folder as long as the block runs; yield its process id and the word after `ready`."""
    with begun(program, order, folder) as (process_id, lines):
        yield process_id, said_ready(lines, program)


@contextmanager
def children(program: Sequence[str], orders: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Run children that wait for each other before they are ready, as the ranks of one model do.

    If one ends before it is ready, the others are ended too."""
    with ThreadPoolExecutor(len(orders)) as readers, ExitStack() as stack:
        texts = [stack.enter_context(begun(program, order))[1] for order in orders]
        for word in as_completed([readers.submit(said_ready, lines, program) for lines in texts]):
            word.result()
        yield


@contextmanager
def begun(program: Sequence[str], order: dict[str, Any], folder: Path | None = None) -> Iterator[tuple[int, TextIO]]:
    """Start a child; yield its process id and the pipe on which it reports that it is ready.

    The child is ended before the pipe is closed, since another thread may be reading it."""
    reader, ready = os.pipe()
    parent, alive = os.pipe()  # never written: end of file signals to the child that this process has ended
    command = [sys.executable, "-P", *program, json.dumps(order | {"ready_fd": ready, "parent_fd": parent})]
    process = subprocess.Popen(
        command, pass_fds=(ready, parent), stdin=subprocess.DEVNULL, stdout=STDERR, cwd=folder)
    os.close(ready)
    os.close(parent)
    with os.fdopen(reader) as lines:
        try:
            yield process.pid, lines
        finally:
            end(process)
            os.close(alive)


def said_ready(lines: Iterable[str], program: Sequence[str]) -> str:
    line = next((line for line in lines if not line.startswith("progress ")), "")
    word, _, rest = line.strip().partition(" ")
    if word != "ready":
        raise NotStarted(f"python {' '.join(program)} did not start: {rest or 'it ended'}")
    return rest.partition(" ")[0]


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_seconds(process_id: int) -> float:
    """Return user and system time of a running process with all its threads; rusage only covers ended children.

    The resolution is a nanosecond. Linux derives the clock id from the process id, see clock_getcpuclockid(3).
    """
    return time.clock_gettime((~process_id << 3) | 2)


def machine_seconds() -> float:
    """Return the CPU seconds of everything that runs on this machine, in ticks of 10 ms."""
    names = "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"
    with open("/proc/stat", encoding="ascii") as file:
        ticks = dict(zip(names, map(int, file.readline().split()[1:]), strict=False))  # "user" includes guests
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) / os.sysconf("SC_CLK_TCK")


