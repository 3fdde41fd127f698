"""Client of the adapter store, a separate process that downloads, checks and caches adapters.

Questions and answers are lines of JSON. The process is started with the first question, and restarted after it has
ended.
"""

import asyncio
import json
import logging
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from router.errors import AdapterFailed

LONGEST_LINE = 2**20

log = logging.getLogger(__name__)


class Store:
    """Client of the adapter store. `close` ends the process."""

    def __init__(self, command: Sequence[str], token: str = "") -> None:
        """`token` is the server's own, for the adapters named in its settings."""
        self._command = command
        self._token = token
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def ask(self, **question: Any) -> Mapping[str, Any]:
        """Send a question and return the answer. Raises AdapterFailed if the process ends before it answers."""
        process = await self._running()
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"id": number, **question}).encode() + b"\n")
            await process.stdin.drain()
            answered: Mapping[str, Any] = await answer
        except ConnectionError:
            raise AdapterFailed(GONE, is_temporary=True) from None
        else:
            return answered
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _running(self) -> Process:
        async with self._starting:
            if self._process is None:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=PIPE, stdout=PIPE, stderr=None, limit=LONGEST_LINE, start_new_session=True)
                assert self._process.stdin is not None
                self._process.stdin.write(f"{self._token}\n".encode())
                self._reading = asyncio.create_task(self._read(self._process))
            return self._process

    async def _read(self, process: Process) -> None:
        """Read answers until the process ends; then fail all pending questions."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._hear(json.loads(line))
            log.error("the store of adapters ended by itself")
        except ValueError as error:
            log.error("the store of adapters says what is no answer: %r", error)
        finally:
            self._process = None
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(AdapterFailed(GONE, is_temporary=True))
            await end(process)

    def _hear(self, said: dict[str, Any]) -> None:
        answer = self._asked.get(said.get("id", 0))
        if answer is not None and not answer.done():
            answer.set_result(said)


GONE = "the process that keeps adapters ended; try again"


async def end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await asyncio.shield(process.wait())
    if process.stdin is not None:
        process.stdin.close()
