"""Clients that send requests one after the other, and the judgement of how each request ended.

Every request must have exactly one terminal event. Two ends are excused: a connection that is cut when its router
died, and one that is cut before any answer when the system had no descriptor for it (libuv closes such connections).
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import aiohttp
from support.chaos.answers import Answer, AnswerReader, compare_with_reference
from support.chaos.request_mix import BEHAVIORS, Behavior, ChaosRequest

REQUEST_TIMEOUT_SECONDS = 180.0  # a request without an end after this time has none
PROBE_INTERVAL_SECONDS = 0.25
# What a valid request may be told during faults; any other error is a finding.
EXPECTED_ERRORS = re.compile("|".join((
    r"died \d+ times", r"processes died several times with this prompt", r"[Tt]he server is (starting|stopping)",
    r"[Mm]odel is overloaded", r"the disk is full", r"not ready",
    r"does not start: \[Errno 24\]")))


@dataclass(slots=True)
class RequestRecord:
    """How a request ended."""

    request: ChaosRequest
    behavior: Behavior
    sent_at: float
    ended_at: float = 0.0
    answer: Answer = field(default_factory=Answer)
    end: str = ""  # complete, error, cut, left, dropped, refused, no end
    error: str = ""
    longest_gap: float = 0.0  # seconds between two lines of a stream
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ChaosLoad:
    url: str
    references: dict[str, Answer]  # by the request's key
    records: list[RequestRecord] = field(default_factory=list)
    probe_times: list[tuple[float, float]] = field(default_factory=list)  # sent, answered
    _open: dict[int, tuple[RequestRecord, aiohttp.ClientResponse]] = field(default_factory=dict)
    _num_sent: int = 0

    def drop_connections(self, choice: int) -> None:
        """Abort every second connection whose answer has begun."""
        for number, (record, response) in [*self._open.items()]:
            if (number + choice) % 2:
                record.end = "dropped"
                response.close()

    async def run_client(self, session: aiohttp.ClientSession, requests: Sequence[ChaosRequest], random: Random,
                         is_over: Callable[[], bool], pause: float) -> None:
        while not is_over():
            await self.send(session, random.choice(requests), random.choice(BEHAVIORS), random.random())
            await asyncio.sleep(random.uniform(0.0, 2.0 * pause))

    async def send(self, session: aiohttp.ClientSession, request: ChaosRequest, behavior: Behavior,
                   patience: float) -> RequestRecord:
        """Send a request and read its answer. A client that leaves does so after `patience` times 20 lines."""
        record, reader = RequestRecord(request, behavior, time.monotonic()), AnswerReader(request.answer_format)
        self._num_sent += 1
        number = self._num_sent
        try:
            async with (asyncio.timeout(REQUEST_TIMEOUT_SECONDS),
                        session.post(self.url + request.path, json=request.body) as response):
                self._open[number] = record, response
                await self._read(record, reader, response, patience)
        except TimeoutError:
            record.end = "no end"
        except aiohttp.ClientConnectorError:
            record.end = "refused"
        except (aiohttp.ClientError, ConnectionError):
            record.end = record.end or "cut"
        finally:
            self._open.pop(number, None)
        record.ended_at = time.monotonic()
        record.answer = reader.answer
        self._judge(record)
        self.records.append(record)
        return record

    async def _read(self, record: RequestRecord, reader: AnswerReader, response: aiohttp.ClientResponse,
                    patience: float) -> None:
        reader.answer.status = response.status
        if not reader.is_stream or response.status >= 400:
            if record.behavior == "leaves" and patience < 0.5:
                record.end = "left"
                response.close()
                return
            reader.read_whole(await response.read())
            return
        last_at, num_lines = time.monotonic(), 0
        async for line in iter_lines(response):
            now = time.monotonic()
            last_at, record.longest_gap, num_lines = now, max(record.longest_gap, now - last_at), num_lines + 1
            reader.feed_line(line)
            if record.behavior == "reads slowly":
                await asyncio.sleep(0.05)
                last_at = time.monotonic()
            if record.behavior == "leaves" and num_lines > 20 * patience:
                record.end = "left"
                response.close()
                return

    def _judge(self, record: RequestRecord) -> None:
        answer = record.answer
        record.error = answer.error
        record.problems += answer.problems
        if not record.end:
            record.end = "error" if answer.error else "complete" if answer.num_ends else "no terminal event"
            if answer.num_ends > 1:
                record.problems.append(f"{answer.num_ends} terminal events")
        if record.end in {"no end", "no terminal event", "refused"}:
            record.problems.append(record.end)
        if record.error and not EXPECTED_ERRORS.search(record.error):
            record.problems.append(f"error: {record.error[:200]}")
        reference = self.references.get(make_key(record.request))
        if reference is None or reference.error:
            return
        record.problems += [f"wrong: {problem}" for problem in compare_with_reference(
            answer, reference, is_complete=record.end == "complete")]

    async def probe(self, session: aiohttp.ClientSession, is_over: Callable[[], bool]) -> None:
        """Ask for one token every quarter of a second, without waiting for the answers."""
        tasks: set[asyncio.Task[None]] = set()
        while not is_over():
            tasks.add(task := asyncio.create_task(self._send_probe(session)))
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_probe(self, session: aiohttp.ClientSession) -> None:
        sent_at = time.monotonic()
        with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
            async with (asyncio.timeout(60.0), session.post(
                    f"{self.url}/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 1}}) as response):
                if response.status == 200:
                    await response.read()
                    self.probe_times.append((sent_at, time.monotonic()))


async def iter_lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for data in response.content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def make_key(request: ChaosRequest) -> str:
    return f"{request.path} {request.body}"


def make_session() -> aiohttp.ClientSession:
    """Return a client with a new connection for each request, so that a cut connection is that request's own."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True),
                                 timeout=aiohttp.ClientTimeout(total=None))


Intervals = Sequence[tuple[float, float]]


def judge_cuts(records: Sequence[RequestRecord], router_deaths: Intervals, descriptor_faults: Intervals) -> None:
    """Add a problem to each cut connection that nothing excuses. A death is an interval: from the last moment at which
    the router was seen alive to the first at which it was gone."""
    for record in records:
        excuses = [*router_deaths, *(descriptor_faults if not record.answer.status else ())]
        if record.end == "cut" and not any(record.sent_at <= end and begin <= record.ended_at
                                           for begin, end in excuses):
            record.problems.append("cut without a router's death")
