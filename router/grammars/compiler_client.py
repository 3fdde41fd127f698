"""Compiler of grammars off the event loop, in a process that limits the time and memory that a grammar may take. It is
started with the first grammar, and again after it was killed or has died. Results are cached, including rejections."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic

from router.errors import InvalidRequest, Overloaded
from router.grammars.parameters import Grammar

COMPILER_COMMAND = (sys.executable, "-P", "-m", "router.grammars.compiler_process")
MAX_COMPILE_SECONDS = 1.5  # per grammar, so that a client gets its rejection within two seconds
MAX_START_SECONDS = 60.0  # for reading the tokenizer
MAX_CACHED_RESULTS = 128
MAX_PENDING_GRAMMARS = 64
MAX_REASON_CHARACTERS = 300  # characters of a reason
RECEIVE_BYTES = 65_536

logger = logging.getLogger(__name__)
CompilerAnswer = dict[str, str]  # see compiler_process.py


class CompilerUnavailable(Exception):
    """The process has ended or does not answer."""


class CompilerProcess:
    """Handle of the compiling process. `send_request` blocks until the answer arrives."""

    def __init__(self, command: Sequence[str]) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(  # noqa: S603 - a command of ours
                command, stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def send_request(self, request: dict[str, str], timeout: float) -> CompilerAnswer:
        deadline = monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = b""
            while not line.endswith(b"\n"):
                self._socket.settimeout(max(deadline - monotonic(), 1e-3))
                piece = self._socket.recv(RECEIVE_BYTES)
                if not piece:
                    raise ConnectionError
                line += piece
            answer: CompilerAnswer = json.loads(line)
        except TimeoutError:
            raise CompilerUnavailable(f"it takes more than {timeout:g} seconds to compile") from None
        except (OSError, ValueError):
            raise CompilerUnavailable("it takes too much memory to compile, or cannot be compiled at all") from None
        return answer

    def kill(self) -> None:
        """Kill the process. Thread-safe; a thread that is blocked in `send_request` gets CompilerUnavailable."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._socket.close()


class GrammarCompiler:
    """Compiler of grammars. `close` ends its thread and its process."""

    def __init__(self, get_tokenizer: Callable[[], str], command: Sequence[str] = COMPILER_COMMAND) -> None:
        """`get_tokenizer` returns the path or the content of the tokenizer's file."""
        self._get_tokenizer = get_tokenizer
        self._command = command
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._process: CompilerProcess | None = None
        self._is_closed = False
        self._cached_results: OrderedDict[bytes, CompilerAnswer] = OrderedDict()
        self._jobs: dict[bytes, asyncio.Future[CompilerAnswer]] = {}

    async def compile(self, grammar: Grammar) -> str:
        """Return the compiled grammar in the form that shards load. Raises InvalidRequest or Overloaded."""
        digest = grammar.digest
        answer = self._cached_results.get(digest)
        if answer is None:
            answer = await asyncio.shield(self._jobs.get(digest) or self._start_job(digest, grammar))
        else:
            self._cached_results.move_to_end(digest)
        if "refused" in answer:
            raise InvalidRequest(f"the grammar is refused: {answer['refused']}")
        return answer["grammar"]

    def close(self) -> None:
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        self._executor.submit(self._close_process)
        self._executor.shutdown()

    def _start_job(self, digest: bytes, grammar: Grammar) -> "asyncio.Future[CompilerAnswer]":
        """Start a job that all callers with the same grammar share and no caller's cancellation ends."""
        if len(self._jobs) >= MAX_PENDING_GRAMMARS:
            raise Overloaded(f"{MAX_PENDING_GRAMMARS} other grammars wait to be compiled")
        job = asyncio.get_running_loop().run_in_executor(self._executor, self._compile_in_process, grammar)
        self._jobs[digest] = job

        def store_result(_: object) -> None:
            del self._jobs[digest]
            if not job.cancelled() and job.exception() is None:
                self._cached_results[digest] = job.result()
                if len(self._cached_results) > MAX_CACHED_RESULTS:
                    self._cached_results.popitem(last=False)
        job.add_done_callback(store_result)
        return job

    # -- in the thread

    def _compile_in_process(self, grammar: Grammar) -> CompilerAnswer:
        try:
            answer = self._ensure_process().send_request({"kind": grammar.kind, "source": grammar.source},
                                                         MAX_COMPILE_SECONDS)
        except CompilerUnavailable as ended:
            logger.warning("the process that compiles grammars is ended: %s", ended)
            self._close_process()
            answer = {"refused": str(ended)}
        if "refused" in answer:  # shortened here, since answers are cached: a reason may quote the whole grammar
            answer["refused"] = " ".join(answer["refused"].split())[:MAX_REASON_CHARACTERS]
        return answer

    def _ensure_process(self) -> CompilerProcess:
        if self._is_closed:
            raise CompilerUnavailable("the server is stopping")
        if self._process is None:
            self._process = CompilerProcess(self._command)
            if self._is_closed:  # `close` may have run before the child was assigned
                self._process.kill()
            refused = self._process.send_request({"tokenizer": self._get_tokenizer()}, MAX_START_SECONDS).get("refused")
            if refused:
                raise CompilerUnavailable(refused)
        return self._process

    def _close_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()
