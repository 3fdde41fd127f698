"""Compiler of grammars off the event loop, in a process that limits the time and memory that a grammar may take.

The process is started with the first grammar, and restarted after it was killed for taking too long or has died.
Results are cached, including rejections.
"""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from router.errors import InvalidRequest, Overloaded
from router.grammars.schema import Grammar

COMMAND = (sys.executable, "-P", "-m", "router.grammars.compiler_process")
MOST_SECONDS = 1.5  # per grammar, so that a client gets its rejection within two seconds
START_SECONDS = 60.0  # for reading the tokenizer
MOST_KNOWN = 128
MOST_WAITING = 64
MOST_TOLD = 300  # characters of a reason
PIECE = 65_536

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    grammar: str = ""  # in the form that shards load
    refused: str = ""  # reason, if the grammar was rejected


class Ended(Exception):
    """The process has ended or does not answer."""


class Child:
    """Handle of the compiling process. `ask` blocks until the answer arrives."""

    def __init__(self, command: Sequence[str]) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(  # noqa: S603 - a command of ours
                command, stdin=other.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, question: dict[str, str], seconds: float) -> dict[str, str]:
        end = monotonic() + seconds
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(json.dumps(question).encode() + b"\n")
            answer: dict[str, str] = json.loads(self._line(end))
        except TimeoutError:
            raise Ended(f"it takes more than {seconds:g} seconds to compile") from None
        except (OSError, ValueError):
            raise Ended("it takes too much memory to compile, or cannot be compiled at all") from None
        return answer

    def _line(self, end: float) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            self._socket.settimeout(max(end - monotonic(), 1e-3))
            piece = self._socket.recv(PIECE)
            if not piece:
                raise ConnectionError
            line += piece
        return line

    def kill(self) -> None:
        """Kill the process. Thread-safe; a thread that is blocked in `ask` gets Ended."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        self._process.wait()
        self._socket.close()


class GrammarCompiler:
    """Compiler of grammars. `close` ends its thread and its process."""

    def __init__(self, tokenizer: Callable[[], str], command: Sequence[str] = COMMAND) -> None:
        """`tokenizer` returns the path or the content of the tokenizer's file."""
        self._tokenizer = tokenizer
        self._command = command
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._child: Child | None = None
        self._closed = False
        self._known: OrderedDict[bytes, Outcome] = OrderedDict()
        self._compiling: dict[bytes, asyncio.Future[Outcome]] = {}

    async def compile(self, grammar: Grammar) -> str:
        """Return the compiled grammar in the form that shards load. Raises InvalidRequest or Overloaded."""
        digest = grammar.digest
        outcome = self._known.get(digest)
        if outcome is None:
            outcome = await asyncio.shield(self._under_way(digest, grammar))
        else:
            self._known.move_to_end(digest)
        if outcome.refused:
            raise InvalidRequest(f"the grammar is refused: {outcome.refused}")
        return outcome.grammar

    def close(self) -> None:
        self._closed = True
        if (child := self._child) is not None:
            child.kill()
        self._thread.submit(self._end_child)
        self._thread.shutdown()

    def _under_way(self, digest: bytes, grammar: Grammar) -> "asyncio.Future[Outcome]":
        """Compile in a job that all callers with the same grammar share and no caller's cancellation ends."""
        if digest not in self._compiling:
            if len(self._compiling) >= MOST_WAITING:
                raise Overloaded(f"{MOST_WAITING} other grammars wait to be compiled")
            job = asyncio.get_running_loop().run_in_executor(self._thread, self._compile, grammar)
            self._compiling[digest] = job
            job.add_done_callback(lambda done: self._note(digest, done))
        return self._compiling[digest]

    def _note(self, digest: bytes, done: "asyncio.Future[Outcome]") -> None:
        del self._compiling[digest]
        if not done.cancelled() and done.exception() is None:
            self._known[digest] = done.result()
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    # -- in the thread

    def _compile(self, grammar: Grammar) -> Outcome:
        try:
            answer = self._running().ask({"kind": grammar.kind, "source": grammar.source}, MOST_SECONDS)
        except Ended as ended:
            log.warning("the process that compiles grammars is ended: %s", ended)
            self._end_child()
            answer = {"refused": str(ended)}
        return Outcome(answer.get("grammar", ""), one_line(answer.get("refused", "")))

    def _running(self) -> Child:
        if self._closed:
            raise Ended("the server is stopping")
        if self._child is None:
            self._child = Child(self._command)
            if self._closed:  # `close` may have run before the child was assigned
                self._child.kill()
            refused = self._child.ask({"tokenizer": self._tokenizer()}, START_SECONDS).get("refused")
            if refused:
                raise Ended(refused)
        return self._child

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def one_line(reason: str) -> str:
    return " ".join(reason.split())[:MOST_TOLD]
