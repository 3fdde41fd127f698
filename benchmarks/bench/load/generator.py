"""Load on a server: an open loop sends requests at given times, a closed loop has clients that wait for answers.

A client sends a request, reads its answer to the end and records when its parts arrived; errors are in the record, too.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from benchmarks.bench.load.dialects import Dialect, EventStreamParser, ParsedEvent, RequestOptions, get_error_message
from benchmarks.bench.load.http import HttpConnectionPool, RequestFailedError, ResponseHead
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord

MAX_ERROR_CHARS = 500  # characters that are kept
RETRY_PAUSE_SECONDS = 1.0  # seconds that a client waits after a failed request


class RequestObserver(Protocol):
    """Observer of requests, such as a progress display."""

    def on_request_sent(self, record: RequestRecord) -> None: ...
    def on_token(self, record: RequestRecord) -> None: ...
    def on_request_ended(self, record: RequestRecord) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how requests are sent to it."""

    url: str
    dialect: Dialect
    api_key: str = ""
    options: RequestOptions = field(default_factory=RequestOptions)
    timeout: float = 600.0

    @property
    def auth_header_line(self) -> str:
        """Authorization header line of a request, empty without an API key."""
        return f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""


class LoadClient:
    """Client whose clock starts when it is created; all times in its records are on this clock."""

    def __init__(self, target: Target, observer: RequestObserver | None = None) -> None:
        self._target = target
        self._observer = observer
        self.connection_pool = HttpConnectionPool(target.url)
        self._started_at = perf_counter()

    def elapsed_seconds(self) -> float:
        return perf_counter() - self._started_at

    async def wait_until_due(self, request: PlannedRequest) -> None:
        if (seconds_left := (request.at or 0.0) - self.elapsed_seconds()) > 0:
            await asyncio.sleep(seconds_left)

    async def send_request(self, bench_request: PlannedRequest) -> RequestRecord:
        target = self._target
        body = json.dumps(target.dialect.make_body(bench_request, target.options)).encode()
        request_bytes = self.connection_pool.build_request("POST", target.dialect.path, target.auth_header_line, body)
        record = RequestRecord(bench_request, self.elapsed_seconds())
        response_reader = ResponseReader(target.dialect, record, self._started_at, self._observer)
        if self._observer is not None:
            self._observer.on_request_sent(record)
        try:
            async with asyncio.timeout(target.timeout):
                head = await self.connection_pool.exchange(request_bytes, response_reader.feed)
            response_reader.finish(head)
        except (RequestFailedError, ValueError) as error:
            record.error = str(error) or "the server closed the connection"
        except TimeoutError:
            record.error = f"no answer within {target.timeout:g} s"
        record.ended = self.elapsed_seconds()
        record.num_tokens = record.num_tokens or len(record.times)
        record.error = escape_surrogates(record.error[:MAX_ERROR_CHARS])
        if self._observer is not None:
            self._observer.on_request_ended(record)
        return record


class ResponseReader:
    """Parser of one answer. A body that is not a stream is kept until the end."""

    def __init__(self, dialect: Dialect, record: RequestRecord, started_at: float,
                 observer: RequestObserver | None) -> None:
        self._dialect, self._record, self._started_at = dialect, record, started_at
        self._event_parser = EventStreamParser(dialect.parse_event) if dialect.parse_event is not None else None
        self._observer = observer
        self._body_chunks: list[bytes] = []
        self._is_complete = False

    def feed(self, status: int, chunk: bytes, arrived_at: float) -> None:
        if status != 200 or self._event_parser is None:
            self._body_chunks.append(chunk)
            return
        try:
            for event in self._event_parser.feed(chunk):
                self._record_event(event, arrived_at - self._started_at)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise RequestFailedError(f"an event that cannot be read: {error!r}") from None

    def _record_event(self, event: ParsedEvent, seconds_since_start: float) -> None:
        record = self._record
        self._is_complete |= event.is_last
        if event.error:
            record.error = event.error
        if event.has_tokens:
            record.times.append(seconds_since_start)
            if self._observer is not None:
                self._observer.on_token(record)
        if event.num_tokens is not None:
            record.num_tokens = event.num_tokens
        if event.prompt_tokens is not None:
            record.prompt_tokens = event.prompt_tokens

    def finish(self, head: ResponseHead) -> None:
        record, body = self._record, b"".join(self._body_chunks)
        record.status = head.status
        record.told_seconds = self._dialect.parse_server_seconds(head)
        if record.status != 200:
            record.error = f"{record.status}: {extract_error_message(body)}"
        elif self._event_parser is None:
            check_is_json(body)
            record.num_tokens = record.ask.output_tokens
        else:
            self._check_stream_end()

    def _check_stream_end(self) -> None:
        """Check that the stream is complete. An answer without text may have tokens by the server's count."""
        record = self._record
        with suppress(RequestFailedError):  # an incomplete event
            self.feed(record.status, b"\n", perf_counter())
        if record.error:
            return
        if not (record.times or record.num_tokens):
            record.error = "an answer without a token"
        elif not self._is_complete and len(record.times) < record.ask.output_tokens:  # some servers send no final event
            record.error = "the answer broke off: its last event never came"


def check_is_json(body: bytes) -> None:
    try:
        json.loads(body)
    except ValueError:
        raise RequestFailedError(f"an answer that is no JSON: {body[:80]!r}") from None


def escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which JSON may contain but UTF-8 files may not."""
    return text.encode("utf-8", "backslashreplace").decode()


def extract_error_message(body: bytes) -> str:
    try:
        return get_error_message(json.loads(body))
    except ValueError:
        return body.decode(errors="replace").strip() or "no reason was given"


async def run_load(target: Target, requests: Iterable[PlannedRequest], concurrency: int | None = None, *,
                   seconds: float | None = None, observer: RequestObserver | None = None,
                   records: list[RequestRecord] | None = None) -> list[RequestRecord]:
    """Send the requests and return their records in the order of sending.

    With a concurrency, that many clients take the requests in order until `seconds` are over (closed loop), none before
    its time if it has one; without, each request is sent at its own time (open loop). A list given as `records` is
    filled even on cancellation."""
    all_records = [] if records is None else records
    client = LoadClient(target, observer)
    try:
        if concurrency is None:
            await run_open_loop(client, requests, all_records)
        else:
            await run_closed_loop(client, requests, concurrency, seconds, all_records)
    finally:
        client.connection_pool.close()
        all_records.sort(key=lambda record: record.sent)
    return all_records


async def run_open_loop(client: LoadClient, requests: Iterable[PlannedRequest], records: list[RequestRecord]) -> None:
    """Send each request at its time `at`, on the clock of the records; these show how late each was sent."""
    async def send_one(request: PlannedRequest) -> None:
        records.append(await client.send_request(request))
    async with asyncio.TaskGroup() as group:
        for request in requests:
            await client.wait_until_due(request)
            group.create_task(send_one(request))


async def run_closed_loop(client: LoadClient, requests: Iterable[PlannedRequest], concurrency: int,
                          seconds: float | None, records: list[RequestRecord]) -> None:
    remaining_requests = iter(requests)
    deadline = perf_counter() + seconds if seconds is not None else None
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(run_client(client, remaining_requests, deadline, records))


async def run_client(client: LoadClient, requests: Iterator[PlannedRequest], deadline: float | None,
                     records: list[RequestRecord]) -> None:
    """Send requests one after the other, with a pause after a failed one unless they have times of their own."""
    for request in requests:
        if deadline is not None and perf_counter() >= deadline:
            break
        await client.wait_until_due(request)
        records.append(await client.send_request(request))
        if records[-1].error and request.at is None:
            await asyncio.sleep(RETRY_PAUSE_SECONDS)


def raise_first_failure(records: Iterable[RequestRecord]) -> None:
    """Raise ValueError if a request failed, in a measurement in which none may."""
    for record in records:
        if record.error:
            raise ValueError(f"a request failed: {record.error}")
