"""A load on a server: requests at their moments whatever becomes of them, or so many clients that wait for answers.

Knows nothing of what is asked or of what is made of the records.
"""

import asyncio
from collections.abc import Iterable, Iterator
from time import perf_counter

from benchmarks.bench.client import Client, Target, Watch
from benchmarks.bench.record import Ask, Record

REST = 1.0  # seconds for which a client whose request failed does not ask again


async def drive(target: Target, asks: Iterable[Ask], concurrency: int | None = None, *, seconds: float | None = None,
                watch: Watch | None = None, records: list[Record] | None = None) -> list[Record]:
    """With a concurrency so many clients take the asks in order, as long as `seconds` are not over. Records are in the
    order in which requests were sent; who gives a list has them also if this is cancelled."""
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
    """By the clock of the records, which tell how late each was."""
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
