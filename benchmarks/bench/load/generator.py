"""Load on a server: an open loop sends requests at given times, a closed loop has clients that wait for answers."""

import asyncio
from collections.abc import Iterable, Iterator
from time import perf_counter

from benchmarks.bench.load.client import LoadClient, RequestObserver, Target
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord

RETRY_PAUSE_SECONDS = 1.0  # seconds that a client waits after a failed request


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
