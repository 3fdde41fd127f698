"""Client that sends a request, reads its answer to the end and records when its parts arrived.

Errors are stored in the record.
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from benchmarks.bench.load.dialects import Dialect, Events, Options, Part, error_of
from benchmarks.bench.load.http import Head, NoAnswer, Server
from benchmarks.bench.load.record import Ask, Record

LONGEST_ERROR = 200  # characters that are kept


class Watch(Protocol):
    """Observer of requests, such as a progress display."""

    def sent(self, record: Record) -> None: ...
    def token(self, record: Record) -> None: ...
    def ended(self, record: Record) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how requests are sent to it."""

    url: str
    dialect: Dialect
    api_key: str = ""
    options: Options = field(default_factory=Options)
    timeout: float = 600.0

    @property
    def fields(self) -> str:
        """Additional header fields of a request."""
        return f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""


class Client:
    """Client whose clock starts when it is created; all times in its records are on this clock."""

    def __init__(self, target: Target, watch: Watch | None = None) -> None:
        self._target = target
        self._watch = watch
        self.server = Server(target.url)
        self._began = perf_counter()

    def now(self) -> float:
        return perf_counter() - self._began

    async def ask(self, ask: Ask) -> Record:
        target = self._target
        body = json.dumps(target.dialect.body(ask, target.options)).encode()
        request = self.server.request("POST", target.dialect.path, target.fields, body)
        record = Record(ask, self.now())
        answer = Answer(target.dialect, record, self._began, self._watch)
        if self._watch is not None:
            self._watch.sent(record)
        try:
            async with asyncio.timeout(target.timeout):
                head = await self.server.exchange(request, answer.heard)
            answer.end(head)
        except (NoAnswer, ValueError) as error:
            record.error = str(error) or "the server closed the connection"
        except TimeoutError:
            record.error = f"no answer within {target.timeout:g} s"
        record.ended = self.now()
        record.num_tokens = record.num_tokens or len(record.times)
        record.error = printable(record.error[:LONGEST_ERROR])
        if self._watch is not None:
            self._watch.ended(record)
        return record


class Answer:
    """Parser of one answer. A body that is not a stream is kept until the end."""

    def __init__(self, dialect: Dialect, record: Record, began: float, watch: Watch | None) -> None:
        self._dialect, self._record, self._began = dialect, record, began
        self._events = Events(dialect.read) if dialect.read is not None else None
        self._watch = watch
        self._pieces: list[bytes] = []
        self._is_whole = False

    def heard(self, status: int, piece: bytes, now: float) -> None:
        if status != 200 or self._events is None:
            self._pieces.append(piece)
            return
        try:
            for part in self._events.heard(piece):
                self._note(part, now - self._began)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise NoAnswer(f"an event that cannot be read: {error!r}") from None

    def _note(self, part: Part, at: float) -> None:
        record = self._record
        self._is_whole |= part.is_last
        if part.error:
            record.error = part.error
        if part.brings:
            record.times.append(at)
            if self._watch is not None:
                self._watch.token(record)
        if part.num_tokens is not None:
            record.num_tokens = part.num_tokens
        if part.prompt_tokens is not None:
            record.prompt_tokens = part.prompt_tokens

    def end(self, head: Head) -> None:
        record, body = self._record, b"".join(self._pieces)
        record.status = head.status
        if told := head.fields.get(self._dialect.seconds):
            record.told_seconds = float(told)
        if record.status != 200:
            record.error = f"{record.status}: {error_in(body)}"
        elif self._events is None:
            check_json(body)
            record.num_tokens = record.ask.output_tokens
        else:
            self._end_stream()

    def _end_stream(self) -> None:
        """Check that the stream is complete. An answer without text may have tokens by the server's count."""
        record = self._record
        with suppress(NoAnswer):  # an incomplete event
            self.heard(record.status, b"\n", perf_counter())
        if record.error:
            return
        if not (record.times or record.num_tokens):
            record.error = "an answer without a token"
        elif not self._is_whole and len(record.times) < record.ask.output_tokens:  # some servers send no final event
            record.error = "the answer broke off: its last event never came"


def check_json(body: bytes) -> None:
    try:
        json.loads(body)
    except ValueError:
        raise NoAnswer(f"an answer that is no JSON: {body[:80]!r}") from None


def printable(text: str) -> str:
    """Escape lone surrogates, which JSON may contain but UTF-8 files may not."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_in(body: bytes) -> str:
    try:
        return error_of(json.loads(body))
    except ValueError:
        return body.decode(errors="replace").strip() or "no reason was told"
