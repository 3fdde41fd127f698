"""Compiler of grammars off the event loop, in processes that limit the time and memory that a grammar may take. They
are started when grammars come, and again after they were killed or have died. Results are cached, with rejections."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic

from router.errors import InvalidRequest, Overloaded
from router.grammars.parameters import Grammar

COMPILER_COMMAND = (sys.executable, "-P", "-m", "router.grammars.compiler_process")
MAX_COMPILE_SECONDS = 1.5  # of the processor per grammar, so that a client gets its rejection within two seconds
MAX_STALLED_SECONDS = 8.0  # per grammar, while others have the processor
MAX_WAIT_SECONDS = 30.0  # that a request waits for its grammar
MAX_START_SECONDS = 60.0  # for reading the tokenizer
MAX_CACHED_RESULTS = 128
NUM_WORKERS = 2
MAX_PENDING_GRAMMARS, MAX_PENDING_PER_TENANT = 64, 32
CPU_CLOCK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
STOP_REASON = "the server is stopping"
MAX_REASON_CHARACTERS = 300  # characters of a reason
RECEIVE_BYTES = 65_536

logger = logging.getLogger(__name__)
CompilerAnswer = dict[str, str]  # see compiler_process.py


class CompilerUnavailable(Exception):
    """The process does not answer."""


class CompilerTimeUsedUp(CompilerUnavailable):
    """The grammar has had its time of the processor."""


class CompilerNotStarted(CompilerUnavailable):
    """The system has no process, memory or descriptor for it now."""


class CompilerDied(CompilerUnavailable):
    """The process has ended. Once, that may be an accident."""


class CompilerProcess:
    """Handle of a compiling process. `send_request` blocks until the answer arrives."""

    def __init__(self, command: Sequence[str]) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(  # noqa: S603 - a command of ours
                command, stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def send_request(self, request: dict[str, str], max_seconds: float, max_stalled_seconds: float) -> CompilerAnswer:
        """Return the answer. It may take `max_seconds` of the processor, which may be taken away from the process for
        some time: within `max_stalled_seconds`."""
        cpu_seconds_before, deadline = self._read_cpu_seconds(), monotonic() + max_stalled_seconds
        try:
            self._socket.settimeout(max_seconds)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line, wait_seconds = b"", max_seconds
            while not line.endswith(b"\n"):
                self._socket.settimeout(wait_seconds)
                try:
                    piece = self._socket.recv(RECEIVE_BYTES)
                except TimeoutError:
                    unused_seconds = max_seconds - (self._read_cpu_seconds() - cpu_seconds_before)
                    if unused_seconds <= CPU_CLOCK_SECONDS:
                        raise CompilerTimeUsedUp(f"it takes more than {max_seconds:g} seconds to compile") from None
                    if monotonic() >= deadline:
                        raise
                    wait_seconds = min(unused_seconds, max(deadline - monotonic(), CPU_CLOCK_SECONDS))
                    continue
                if not piece:
                    raise ConnectionError
                line += piece
            answer: CompilerAnswer = json.loads(line)
        except TimeoutError:
            raise CompilerUnavailable(f"it takes more than {max_seconds:g} seconds to compile, or this machine is "
                                      "busy; try again") from None
        except (OSError, ValueError):
            raise CompilerDied("it takes too much memory to compile, or cannot be compiled at all") from None
        return answer

    def _read_cpu_seconds(self) -> float:
        """Return the processor time of the process so far; 0 if it has ended."""
        try:
            with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as file:
                user_ticks, system_ticks = file.read().rpartition(")")[2].split()[11:13]
        except OSError:
            return 0.0
        return (int(user_ticks) + int(system_ticks)) * CPU_CLOCK_SECONDS

    def kill(self) -> None:
        """Kill the process. Thread-safe; a thread that is blocked in `send_request` gets CompilerUnavailable."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._socket.close()


class CompilerWorker:
    """Compiler of one grammar at a time, with a process of its own that is started when needed."""

    def __init__(self, get_tokenizer: Callable[[], str], command: Sequence[str]) -> None:
        self._get_tokenizer = get_tokenizer
        self._command = command
        self._is_closed = False
        self.process: CompilerProcess | None = None

    def compile(self, grammar: Grammar) -> tuple[CompilerAnswer, bool]:
        """Return the answer, and whether it is a verdict on the grammar that would be the same at any time. Blocks."""
        try:
            try:
                answer = self._compile_in_process(grammar)
            except CompilerDied:  # another process shows whether of the grammar
                answer = self._compile_in_process(grammar)
        except CompilerNotStarted as error:
            return {"overloaded": str(error)}, False
        except CompilerUnavailable as ended:
            is_verdict = isinstance(ended, CompilerTimeUsedUp | CompilerDied) and not self._is_closed
            return shorten_refusal({"refused": str(ended)}), is_verdict
        return shorten_refusal(answer), True

    def kill(self) -> None:
        """End the process for good, also while it compiles."""
        self._is_closed = True
        if (process := self.process) is not None:
            process.kill()

    def close_process(self) -> None:
        """End the process, if there is one, and wait until it has ended."""
        process, self.process = self.process, None
        if process is not None:
            process.close()

    def _compile_in_process(self, grammar: Grammar) -> CompilerAnswer:
        try:
            return self._ensure_process().send_request({"kind": grammar.kind, "source": grammar.source},
                                                       MAX_COMPILE_SECONDS, MAX_STALLED_SECONDS)
        except CompilerUnavailable as ended:
            logger.warning("the process that compiles grammars is ended: %s", ended)
            self.close_process()
            raise

    def _ensure_process(self) -> CompilerProcess:
        if self._is_closed:
            raise CompilerUnavailable(STOP_REASON)
        if self.process is None:
            try:
                self.process, tokenizer = CompilerProcess(self._command), self._get_tokenizer()
            except OSError as error:
                raise CompilerNotStarted(
                    f"the process that compiles grammars does not start: {error}; try again") from error
            if self._is_closed:  # `kill` may have run before the process was assigned
                self.process.kill()
            try:
                answer = self.process.send_request({"tokenizer": tokenizer}, MAX_START_SECONDS,
                                                   MAX_START_SECONDS)
            except (CompilerDied, CompilerTimeUsedUp):
                raise CompilerUnavailable("the process that compiles grammars does not start") from None
            if "refused" in answer:
                raise CompilerUnavailable(answer["refused"])
        return self.process


@dataclass(slots=True)
class CompilerJob:
    """Grammar that waits to be compiled or is being compiled. All requests for it share the job."""

    grammar: Grammar
    answer: "asyncio.Future[CompilerAnswer]"
    is_started: bool = False


class GrammarCompiler:
    """Compiler of grammars, fair between tenants. `close` ends its threads and processes."""

    def __init__(self, get_tokenizer: Callable[[], str], command: Sequence[str] = COMPILER_COMMAND) -> None:
        """`get_tokenizer` returns the path or the content of the tokenizer's file."""
        self._executor = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="grammars")
        self._workers = [CompilerWorker(get_tokenizer, command) for _ in range(NUM_WORKERS)]
        self._idle_workers = [*reversed(self._workers)]  # the last one, which has a process if any has, is next
        self._cached_results: OrderedDict[bytes, CompilerAnswer] = OrderedDict()
        self._jobs: dict[bytes, CompilerJob] = {}
        # Digests of the grammars that each tenant waits for; the tenant whose turn is next comes first.
        self._queues: OrderedDict[str, deque[bytes]] = OrderedDict()

    async def compile(self, grammar: Grammar, tenant_name: str = "") -> str:
        """Return the compiled grammar in the form that shards load. Raises InvalidRequest or Overloaded."""
        digest = grammar.digest
        answer = self._cached_results.get(digest)
        if answer is None:
            answer = await self._wait_for_answer(digest, grammar, tenant_name)
        else:
            self._cached_results.move_to_end(digest)
        if "overloaded" in answer:
            raise Overloaded(answer["overloaded"])
        if "refused" in answer:
            raise InvalidRequest(f"the grammar is refused: {answer['refused']}")
        return answer["grammar"]

    def close(self) -> None:
        for job in self._jobs.values():
            if not job.is_started:
                job.answer.set_result({"refused": STOP_REASON})
        self._queues.clear()
        for worker in self._workers:
            worker.kill()
            self._executor.submit(worker.close_process)
        self._executor.shutdown()

    async def _wait_for_answer(self, digest: bytes, grammar: Grammar, tenant_name: str) -> CompilerAnswer:
        """Wait for the job of a grammar, which no request's cancellation ends, for at most MAX_WAIT_SECONDS."""
        job = self._jobs.get(digest)
        if job is None or not job.is_started:
            self._enqueue(digest, tenant_name)
        if job is None:
            job = self._jobs[digest] = CompilerJob(grammar, asyncio.get_running_loop().create_future())
        self._start_jobs()
        try:
            return await asyncio.wait_for(asyncio.shield(job.answer), MAX_WAIT_SECONDS)
        except TimeoutError:
            raise Overloaded(f"other grammars were compiled before this one for {MAX_WAIT_SECONDS:g} seconds") from None

    def _enqueue(self, digest: bytes, tenant_name: str) -> None:
        """Let the tenant wait for a grammar, which another one may be waiting for, too."""
        queue = self._queues.get(tenant_name, ())
        is_full = digest not in self._jobs and len(self._jobs) >= MAX_PENDING_GRAMMARS
        if is_full or len(queue) >= MAX_PENDING_PER_TENANT:
            raise Overloaded(f"{len(self._jobs) if is_full else len(queue)} other grammars wait to be compiled")
        if digest not in queue:
            self._queues.setdefault(tenant_name, deque()).append(digest)

    def _start_jobs(self) -> None:
        """Give the next grammars, of one tenant after the other, to workers that are idle."""
        while self._idle_workers and (job := self._pop_next_job()) is not None:
            job.is_started = True
            worker = self._idle_workers.pop()
            compiled = asyncio.get_running_loop().run_in_executor(self._executor, worker.compile, job.grammar)
            compiled.add_done_callback(partial(self._finish_job, worker, job))

    def _pop_next_job(self) -> CompilerJob | None:
        while self._queues:
            tenant_name, queue = self._queues.popitem(last=False)
            digest = queue.popleft()
            if queue:
                self._queues[tenant_name] = queue  # behind all others
            job = self._jobs.get(digest)
            if job is not None and not job.is_started:  # another tenant's turn may have started it
                return job
        return None

    def _finish_job(self, worker: CompilerWorker, job: CompilerJob,
                    compiled: "asyncio.Future[tuple[CompilerAnswer, bool]]") -> None:
        self._idle_workers.append(worker)
        del self._jobs[job.grammar.digest]
        answer, is_lasting = compiled.result()
        if is_lasting:
            self._cached_results[job.grammar.digest] = answer
            if len(self._cached_results) > MAX_CACHED_RESULTS:
                self._cached_results.popitem(last=False)
        job.answer.set_result(answer)
        self._start_jobs()


def shorten_refusal(answer: CompilerAnswer) -> CompilerAnswer:
    """Shorten a reason, which may quote the whole grammar: answers are cached."""
    return ({"refused": " ".join(answer["refused"].split())[:MAX_REASON_CHARACTERS]} if "refused" in answer else answer)
