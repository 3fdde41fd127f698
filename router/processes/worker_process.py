"""Child processes that can be killed, for work that may take any time or memory: compiling a grammar, rendering a chat
with a model's template. A process is started when there is work, kept, and replaced after it was killed or has died.

The standard input of the process is a socket, on which it answers each line of JSON with a line of JSON.
"""

import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import clock_gettime, monotonic
from typing import Any

from router.processes.network_isolation import leave_network

MAX_START_SECONDS = 60.0  # for the imports and the first line
MIN_WAIT_SECONDS = 0.01
PROCESS_CPU_CLOCK = 2  # as in clock_getcpuclockid(3) of Linux, beside the inverted process id
# seconds; takes effect only after the parent has died, since the parent kills the process earlier
SELF_KILL_SECONDS = 10.0
STOP_REASON = "the server is stopping"
RECEIVE_BYTES = 65_536
MAX_REASON_CHARACTERS = 300
MAX_STDERR_BYTES = 65_536
STACK_LINE_PATTERN = re.compile(r'^  File "([^"]+)", line ([0-9]+)', re.MULTILINE)
ERROR_LINE_PATTERN = re.compile(r"^([\w.]+(?:Error|Exception|Exit))\b(?=:|$)", re.MULTILINE)
EXPECTED_ERROR_TYPES = frozenset({"MemoryError"})
# Variables that a process gets. Others may hold secrets, such as keys and tokens.
PROCESS_VARIABLES = frozenset({"HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ"})

logger = logging.getLogger(__name__)
WorkerMessage = Mapping[str, Any]
WorkerAnswer = dict[str, Any]  # has `refused` or `overloaded`, a reason, if there is no result


@dataclass(frozen=True, slots=True)
class WorkerTaskWording:
    """Words for what a process does, in errors and in the log: `compile`, `compiled`, `grammars`."""

    verb: str
    participle: str
    objects: str

    @property
    def process_name(self) -> str:
        return f"the process that {self.verb}s {self.objects}"


class WorkerUnavailable(Exception):
    """The process does not answer."""


class WorkerCpuTimeExceeded(WorkerUnavailable):
    """The work has had its time of the processor."""


class WorkerStartFailed(WorkerUnavailable):
    """The system has no process, memory or descriptor for it now."""


class WorkerDied(WorkerUnavailable):
    """The process has ended. Once, that may be an accident."""


class WorkerProcess:
    """Handle of a child process. `send_request` blocks until the answer arrives."""

    def __init__(self, task: WorkerTaskWording, command: Sequence[str]) -> None:
        self._task = task
        self._socket, other = socket.socketpair()
        self._stderr, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # what does not fit into the pipe is lost
        try:
            with other:
                self._process = subprocess.Popen(  # noqa: S603 - a command of ours
                    command, stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=stderr,
                    env=filter_environment(os.environ))
        except BaseException:
            os.close(self._stderr)
            self._socket.close()
            raise
        finally:
            os.close(stderr)

    def send_request(self, request: WorkerMessage, max_seconds: float, max_stalled_seconds: float) -> WorkerAnswer:
        """Return the answer. It may take `max_seconds` of the processor, which may be taken away from the process for
        some time: within `max_stalled_seconds`."""
        cpu_seconds_before, deadline = self._read_cpu_seconds(), monotonic() + max_stalled_seconds
        too_slow = f"it takes more than {max_seconds:g} seconds to {self._task.verb}"
        request_line = json.dumps(request).encode() + b"\n"
        try:
            self._socket.settimeout(max_seconds)
            self._socket.sendall(request_line)
            line = bytearray()
            while not line.endswith(b"\n"):
                try:
                    piece = self._socket.recv(RECEIVE_BYTES)
                except TimeoutError:
                    unused_seconds = max_seconds - (self._read_cpu_seconds() - cpu_seconds_before)
                    if unused_seconds <= MIN_WAIT_SECONDS:
                        raise WorkerCpuTimeExceeded(too_slow) from None
                    if monotonic() >= deadline:
                        raise
                    self._socket.settimeout(min(unused_seconds, max(deadline - monotonic(), MIN_WAIT_SECONDS)))
                    continue
                if not piece:
                    raise ConnectionError
                line += piece
            answer: WorkerAnswer = json.loads(line)
        except TimeoutError:
            raise WorkerUnavailable(f"{too_slow}, or this machine is busy; try again") from None
        except (OSError, ValueError):
            raise WorkerDied(f"it takes too much memory to {self._task.verb}, or cannot be {self._task.participle} "
                             "at all") from None
        return answer

    def _read_cpu_seconds(self) -> float:
        """Return the processor time of the process so far; 0 if it has ended."""
        try:
            return clock_gettime(~self._process.pid << 3 | PROCESS_CPU_CLOCK)
        except OSError:
            return 0.0

    def find_error(self) -> str:
        """Return place and type of the error that has ended the process; empty if it wrote none, or only that memory
        was missing. Its message is left out, since it may quote what was sent."""
        try:
            errors = os.read(self._stderr, MAX_STDERR_BYTES).decode(errors="replace")
        except OSError:
            return ""
        places, error_types = STACK_LINE_PATTERN.findall(errors), ERROR_LINE_PATTERN.findall(errors)
        if not error_types or error_types[-1] in EXPECTED_ERROR_TYPES:
            return ""
        return f"{error_types[-1]} at {places[-1][0]}:{places[-1][1]}" if places else error_types[-1]

    def kill(self) -> None:
        """Kill the process. Thread-safe; a thread that is blocked in `send_request` gets WorkerUnavailable."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._socket.close()
        os.close(self._stderr)


def filter_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items()
            if name in PROCESS_VARIABLES or name.startswith("PYTHON")}


class RestartingWorker:
    """Worker for one request at a time, with a process of its own that is started when needed."""

    def __init__(self, task: WorkerTaskWording, command: Sequence[str],
                 get_first_request: Callable[[], WorkerMessage]) -> None:
        """`get_first_request` returns the first message to a new process, and answers when it is ready."""
        self._task = task
        self._command = command
        self._get_first_request = get_first_request
        self._is_closed = False
        self.process: WorkerProcess | None = None

    def send_request(self, request: WorkerMessage, max_seconds: float,
                     max_stalled_seconds: float) -> tuple[WorkerAnswer, bool]:
        """Return the answer, and whether it is a verdict on the request that would be the same at any time. Blocks."""
        try:
            try:
                answer = self._send_to_process(request, max_seconds, max_stalled_seconds)
            except WorkerDied:  # another process shows whether of the request
                answer = self._send_to_process(request, max_seconds, max_stalled_seconds)
        except WorkerStartFailed as error:
            return {"overloaded": str(error)}, False
        except WorkerUnavailable as ended:
            if self._is_closed:
                return {"refused": STOP_REASON}, False
            return {"refused": str(ended)}, isinstance(ended, WorkerCpuTimeExceeded | WorkerDied)
        return answer, True

    def kill(self) -> None:
        """End the process for good, also while it works."""
        self._is_closed = True
        if (process := self.process) is not None:
            process.kill()

    def close_process(self) -> None:
        """End the process, if there is one, and wait until it has ended."""
        process, self.process = self.process, None
        if process is not None:
            process.close()

    def _send_to_process(self, request: WorkerMessage, max_seconds: float, max_stalled_seconds: float) -> WorkerAnswer:
        try:
            return self._ensure_process().send_request(request, max_seconds, max_stalled_seconds)
        except WorkerUnavailable as ended:
            if not self._is_closed:
                logger.warning("%s is ended: %s", self._task.process_name, ended)
                if self.process is not None and (error := self.process.find_error()):
                    logger.error("%s failed with %s", self._task.process_name, error)
            self.close_process()
            raise

    def _ensure_process(self) -> WorkerProcess:
        if self._is_closed:
            raise WorkerUnavailable(STOP_REASON)
        if self.process is None:
            try:
                self.process = WorkerProcess(self._task, self._command)
                self._prepare_process(self.process, self._get_first_request())
            except OSError as error:
                raise WorkerStartFailed(f"{self._task.process_name} does not start: {error}; try again") from error
            except BaseException:  # a process that is not prepared would take a request for its first line
                self.close_process()
                raise
        return self.process

    def _prepare_process(self, process: WorkerProcess, first_request: WorkerMessage) -> None:
        if self._is_closed:  # `kill` may have run before the process was assigned
            process.kill()
        try:
            answer = process.send_request(first_request, MAX_START_SECONDS, MAX_START_SECONDS)
        except (WorkerDied, WorkerCpuTimeExceeded):
            raise WorkerUnavailable(f"{self._task.process_name} does not start") from None
        if "refused" in answer:
            raise WorkerUnavailable(answer["refused"])


class IdleWorkers:
    """Workers that wait for work; thread-safe. The next to be taken has a process if any has."""

    def __init__(self, workers: Iterable[RestartingWorker]) -> None:
        self._workers = deque(workers)
        self._condition = threading.Condition()

    def take(self) -> RestartingWorker:
        """Remove and return the next worker. Blocks until there is one."""
        with self._condition:
            self._condition.wait_for(lambda: self._workers)
            return self._workers.pop()

    def take_all(self, count: int) -> list[RestartingWorker]:
        """Remove and return all `count` workers. Blocks until none of them works."""
        with self._condition:
            self._condition.wait_for(lambda: len(self._workers) == count)
            workers = [*self._workers]
            self._workers.clear()
            return workers

    def put(self, worker: RestartingWorker) -> None:
        with self._condition:
            if worker.process is None:
                self._workers.appendleft(worker)
            else:
                self._workers.append(worker)
            self._condition.notify_all()


def shorten_reason(reason: str) -> str:
    """Shorten a reason, which may quote what was sent."""
    return " ".join(reason[:16 * MAX_REASON_CHARACTERS].split())[:MAX_REASON_CHARACTERS]


# ---------------------------------------------------------------------------------------------------------------------
# In the process


def set_up_worker_process(niceness: int = 0) -> socket.socket:
    """Take this process from the network, where the system allows that, let others have more of the processor by
    `niceness`, and return the socket to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is meant for the parent
    leave_network()
    os.nice(niceness)
    return socket.socket(fileno=0)


def limit_memory(max_extra_bytes: int) -> None:
    """Limit the process to `max_extra_bytes` more than it has allocated by now; larger allocations fail."""
    with open("/proc/self/status", encoding="ascii") as status:
        allocated = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (allocated + max_extra_bytes, allocated + max_extra_bytes))


def answer_requests(parent: socket.socket, lines: Iterable[bytes], answer: Callable[[Any], WorkerAnswer]) -> None:
    """Answer each line until the parent has closed the socket."""
    for line in lines:
        signal.setitimer(signal.ITIMER_REAL, SELF_KILL_SECONDS)  # SIGALRM has no handler, so it ends the process
        reply = json.dumps(answer(json.loads(line))).encode() + b"\n"
        signal.setitimer(signal.ITIMER_REAL, 0)
        parent.sendall(reply)
