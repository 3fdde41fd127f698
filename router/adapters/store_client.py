"""Client of the adapter store, a separate process that downloads, checks and caches adapters. Questions and answers are
lines of JSON. The process is started with the first question, and again after it has ended or did not respond."""

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
CHECK_SECONDS = 1.0  # between checks whether the process responds, while a question waits
MAX_SILENT_SECONDS = 10.0  # without a response, after which the process is killed
MAX_START_SECONDS = 60.0  # until its first response
MAX_LATENESS_SECONDS = 1.0  # of a check, which counts: beyond it this process has stood still
MAX_ANSWER_SECONDS = 60.0
MAX_ANSWER_SECONDS_BY_OPERATION = {"fetch": 1800.0, "merge": 1800.0}
PING_REQUEST = {"id": 0, "op": "ping"}

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
        self._watch_task: asyncio.Task[None] | None = None
        self._start_lock = asyncio.Lock()
        self._unresponsive_reason = ""  # why the process was killed; empty if it was not
        self._num_responses = 0  # lines that the process has written

    async def send_request(self, **request: Any) -> Mapping[str, Any]:
        """Send a question and return the answer. All questions may be asked twice: one whose process ended is asked
        again, once. Raises AdapterLoadFailed if that ends, too, does not start or respond, or needs too long."""
        try:
            return await self._send_once(request)
        except StoreExited:  # an accident, or the fault of another question
            return await self._send_once(request)

    async def _send_once(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        process, reader_task = await self._ensure_process()
        request_id = next(self._request_ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending_answers[request_id] = answer
        self._start_watchdog(process)
        seconds = MAX_ANSWER_SECONDS_BY_OPERATION.get(request.get("op", ""), MAX_ANSWER_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await write_line(process, json.dumps({"id": request_id, **request}))
                return await answer
        except TimeoutError:
            raise AdapterLoadFailed(f"the process that keeps adapters did not answer within {seconds:g} seconds; "
                                    "try again", is_temporary=True) from None
        except ConnectionError:  # the reader notices it, too, and then another process may be started
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait([reader_task])
            raise self._make_exit_error() from None
        finally:
            self._pending_answers.pop(request_id, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # the reader may have failed it while the write failed, too: once is enough

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
                self._unresponsive_reason, self._num_responses = "", 0
                # Before anything is written: this task alone notices that a process has ended, be it at once.
                self._process, self._reader_task = process, asyncio.create_task(self._read_answers(process))
                with suppress(ConnectionError):
                    await write_line(process, self._server_token)
                return process, self._reader_task
            return self._process, self._reader_task

    def _make_exit_error(self) -> AdapterLoadFailed:
        reason = self._unresponsive_reason
        return AdapterLoadFailed(reason, is_temporary=True) if reason else StoreExited()

    async def close(self) -> None:
        tasks = [task for task in (self._watch_task, self._reader_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_watchdog(self, process: Process) -> None:
        """Start the task that kills the process if it does not respond while questions wait, unless it runs."""
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.create_task(self._kill_if_unresponsive(process))

    async def _kill_if_unresponsive(self, process: Process) -> None:
        """Kill the process when it does not respond. Time in which this process itself stood still does not count."""
        loop, silent_seconds, num_responses = asyncio.get_running_loop(), 0.0, -1
        assert process.stdin is not None
        while self._pending_answers:
            if num_responses != self._num_responses:
                num_responses, silent_seconds = self._num_responses, 0.0
                process.stdin.write(json.dumps(PING_REQUEST).encode() + b"\n")
            started_at = loop.time()
            await asyncio.sleep(CHECK_SECONDS)
            if num_responses == self._num_responses:
                silent_seconds += min(loop.time() - started_at, CHECK_SECONDS + MAX_LATENESS_SECONDS)
            if silent_seconds > (MAX_SILENT_SECONDS if num_responses else MAX_START_SECONDS):
                self._unresponsive_reason = ("the process that keeps adapters did not respond for "
                                             f"{silent_seconds:.0f} seconds and was ended; try again")
                logger.error("%s", self._unresponsive_reason)
                with suppress(ProcessLookupError):
                    process.kill()
                return

    async def _read_answers(self, process: Process) -> None:
        """Read answers until the process ends; then fail all pending questions."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._num_responses += 1
                message = json.loads(line)
                answer = self._pending_answers.get(message.get("id", 0))
                if answer is not None and not answer.done():
                    answer.set_result(message)
            if not self._unresponsive_reason:
                logger.error("the store of adapters ended by itself")
        except ValueError as error:
            logger.error("the store of adapters says what is no answer: %r", error)
        finally:
            self._process = None
            if self._watch_task is not None:
                self._watch_task.cancel()
                self._watch_task = None
            for pending in self._pending_answers.values():
                if not pending.done():
                    pending.set_exception(self._make_exit_error())
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
            if process.stdin is not None:
                process.stdin.close()
