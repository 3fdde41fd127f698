"""Load on a server: an open loop sends requests at given times, a closed loop has clients that wait for answers."""

import asyncio
from collections.abc import Iterable, Iterator
from time import perf_counter

from benchmarks.bench.load.client import Client, Target, Watch
from benchmarks.bench.load.record import Ask, Record

REST = 1.0  # seconds that a client waits after a failed request


async def drive(target: Target, asks: Iterable[Ask], concurrency: int | None = None, *, seconds: float | None = None,
                watch: Watch | None = None, records: list[Record] | None = None) -> list[Record]:
    """Send the requests and return their records in the order of sending.

    With a concurrency, that many clients take the requests in order until `seconds` are over (closed loop); without,
    each request is sent at its own time (open loop). A list given as `records` is filled even on cancellation."""
    kept = [] if records is None else records
    client = Client(target, watch)
    try:
        if concurrency is None:
            await in_time(client, asks, kept)
        else:
            await in_turn(client, asks, concurrency, seconds, kept)
    finally:
        client.server.close()
        kept.sort(key=lambda record: record.sent)
    return kept


async def in_time(client: Client, asks: Iterable[Ask], records: list[Record]) -> None:
    """Send each request at its time `at`, on the clock of the records; these show how late each was sent."""
    async def one(ask: Ask) -> None:
        records.append(await client.ask(ask))
    async with asyncio.TaskGroup() as group:
        for ask in asks:
            if (left := (ask.at or 0.0) - client.now()) > 0:
                await asyncio.sleep(left)
            group.create_task(one(ask))


async def in_turn(client: Client, asks: Iterable[Ask], concurrency: int, seconds: float | None,
                  records: list[Record]) -> None:
    waiting = iter(asks)
    until = perf_counter() + seconds if seconds is not None else None
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(take_turns(client, waiting, until, records))


async def take_turns(client: Client, asks: Iterator[Ask], until: float | None, records: list[Record]) -> None:
    for ask in asks:
        if until is not None and perf_counter() >= until:
            break
        records.append(await client.ask(ask))
        if records[-1].error:
            await asyncio.sleep(REST)
