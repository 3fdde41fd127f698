"""A compared server as a process: its start until the first answer, its memory, its end with all that it started."""

import asyncio
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench.load.dialects import DIALECTS, RequestOptions
from benchmarks.bench.load.generator import LoadClient, Target
from benchmarks.bench.load.request_records import PlannedRequest
from benchmarks.harness.processes import (
    EXIT_TIMEOUT_SECONDS,
    ProcessStartError,
    convert_sigterm_to_exit,
    list_descendants,
    terminate_process,
)
from benchmarks.peers.environments import summarize_log

START_TIMEOUT_SECONDS = 300.0
ANSWER_TIMEOUT_SECONDS = 600.0
POLL_INTERVAL_SECONDS = 0.1  # between two requests to a server that is starting
MEMORY_INTERVAL_SECONDS = 2.0  # between two readings, each of which walks through all pages


class MemorySampler:
    """Thread that keeps the peak memory of a process with all that it has started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak_bytes = 0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "MemorySampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()

    @property
    def peak_gb(self) -> float:
        """Peak so far, the memory of now included."""
        self._sample()
        return self._peak_bytes / 1e9

    def _run(self) -> None:
        while not self._is_stopped.wait(MEMORY_INTERVAL_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self._peak_bytes = max(self._peak_bytes, read_memory_bytes(list_descendants(self._pid)))


def read_memory_bytes(pids: Iterable[int]) -> int:
    """Return the memory of processes, of which shared pages count once (PSS); one that has ended counts nothing."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            if match := re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE):
                total += 1024 * int(match[1])
    return total


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that has answered."""

    target: Target
    start_seconds: float  # from its start to the end of its first answer, of one token
    memory: MemorySampler


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How a server is started and asked: its command line, its whole environment, its URL and options of requests."""

    words: tuple[str | Path, ...]
    variables: dict[str, str]
    url: str
    options: RequestOptions = field(default_factory=RequestOptions)

    @property
    def target(self) -> Target:
        return Target(self.url, DIALECTS["openai"], options=self.options, timeout=ANSWER_TIMEOUT_SECONDS)


@contextmanager
def run_server(command: ServerCommand) -> Iterator[RunningServer]:
    """Run a server as long as the block runs. Raises ProcessStartError, with its last words, if it gives no answer."""
    with tempfile.TemporaryDirectory(prefix="weft-peer-") as folder, convert_sigterm_to_exit(), \
            (log_path := Path(folder, "log")).open("wb") as log:
        started_at = time.monotonic()
        process = subprocess.Popen(list(map(str, command.words)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   cwd=folder, env=command.variables, start_new_session=True)
        try:
            with MemorySampler(process.pid) as memory:
                if reason := asyncio.run(wait_for_answer(command.target, process, started_at + START_TIMEOUT_SECONDS)):
                    last_words = summarize_log(log_path.read_text(errors="replace"))
                    raise ProcessStartError(f"it did not start: {reason}; {last_words}")
                yield RunningServer(command.target, time.monotonic() - started_at, memory)
        finally:
            terminate_tree(process)


async def wait_for_answer(target: Target, process: "subprocess.Popen[bytes]", deadline: float) -> str:
    """Wait until a server has answered with a token. Return the reason if it does not, else an empty text."""
    client = LoadClient(target)
    try:
        while process.poll() is None:
            record = await client.send_request(PlannedRequest(0, "hello", 1))
            if not record.error or 400 <= record.status < 500 or time.monotonic() > deadline:
                return record.error
            await asyncio.sleep(POLL_INTERVAL_SECONDS)
    finally:
        client.connection_pool.close()
    return f"it ended by {signal.Signals(-code).name}" if (code := process.returncode) < 0 else f"it ended with {code}"


def terminate_tree(process: "subprocess.Popen[bytes]") -> None:
    """End a process, then what is left of the processes that it has started; return when all are gone."""
    with ExitStack() as stack:
        descriptors = list[int]()  # stand for the processes, as their ids may be given to others
        for pid in list_descendants(process.pid)[1:]:
            with suppress(ProcessLookupError):
                descriptors.append(os.pidfd_open(pid))
                stack.callback(os.close, descriptors[-1])
        terminate_process(process)
        for descriptor in descriptors:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor in descriptors:
            select.select([descriptor], [], [], EXIT_TIMEOUT_SECONDS)
