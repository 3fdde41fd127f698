"""Client of the adapter store, a separate process that downloads, checks and caches adapters. Questions and answers are
lines of JSON. The process is started with the first question, and restarted after it has ended."""

import asyncio
import json
import logging
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from router.errors import AdapterLoadFailed

MAX_LINE_BYTES = 2**20

logger = logging.getLogger(__name__)


class StoreExited(AdapterLoadFailed):
    """The process ended before it answered."""

    def __init__(self) -> None:
        super().__init__("the process that keeps adapters ended; try again", is_temporary=True)


async def write_line(process: Process, line: str) -> None:
    """Write a line to the process's standard input. Raises ConnectionError if the process has ended."""
    assert process.stdin is not None
    if process.stdin.transport.is_closing():  # uvloop raises RuntimeError where asyncio ignores the write
        raise ConnectionResetError
    process.stdin.write(line.encode() + b"\n")
    await process.stdin.drain()


class AdapterStoreClient:
    """Client of the adapter store. `close` ends the process."""

    def __init__(self, command: Sequence[str], server_token: str = "") -> None:
        """`server_token` is the server's own, for the adapters named in its settings."""
        self._command = command
        self._server_token = server_token
        self._request_ids = count(1)
        self._pending_answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: Process | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._start_lock = asyncio.Lock()

    async def send_request(self, **request: Any) -> Mapping[str, Any]:
        """Send a question and return the answer. All questions may be asked twice: one whose process ended is asked
        again, once. Raises AdapterLoadFailed if that ends, too, or does not start."""
        try:
            return await self._send_once(request)
        except StoreExited:  # an accident, or the fault of another question
            return await self._send_once(request)

    async def _send_once(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        process, reader_task = await self._ensure_process()
        request_id = next(self._request_ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending_answers[request_id] = answer
        try:
            await write_line(process, json.dumps({"id": request_id, **request}))
            return await answer
        except ConnectionError:  # the reader notices it, too, and then another process may be started
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait([reader_task])
            raise StoreExited from None
        finally:
            self._pending_answers.pop(request_id, None)

    async def _ensure_process(self) -> tuple[Process, asyncio.Task[None]]:
        """Return the process and the task that reads its answers."""
        async with self._start_lock:
            if self._process is None or self._reader_task is None:
                try:
                    process = await asyncio.create_subprocess_exec(
                        *self._command, stdin=PIPE, stdout=PIPE, stderr=None, limit=MAX_LINE_BYTES,
                        start_new_session=True)
                except OSError as error:
                    raise AdapterLoadFailed(f"the process that keeps adapters does not start: {error}; try again",
                                            is_temporary=True) from error
                # Before anything is written: this task alone notices that a process has ended, be it at once.
                self._process, self._reader_task = process, asyncio.create_task(self._read_answers(process))
                with suppress(ConnectionError):
                    await write_line(process, self._server_token)
                return process, self._reader_task
            return self._process, self._reader_task

    async def close(self) -> None:
        if self._reader_task is not None:
            self._reader_task.cancel()
            await asyncio.gather(self._reader_task, return_exceptions=True)

    async def _read_answers(self, process: Process) -> None:
        """Read answers until the process ends; then fail all pending questions."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                message = json.loads(line)
                answer = self._pending_answers.get(message.get("id", 0))
                if answer is not None and not answer.done():
                    answer.set_result(message)
            logger.error("the store of adapters ended by itself")
        except ValueError as error:
            logger.error("the store of adapters says what is no answer: %r", error)
        finally:
            self._process = None
            for pending in self._pending_answers.values():
                if not pending.done():
                    pending.set_exception(StoreExited())
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
            if process.stdin is not None:
                process.stdin.close()
