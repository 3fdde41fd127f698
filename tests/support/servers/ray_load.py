"""Streams through Ray Serve, and what became of each: complete, refused, or visibly cut."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

COMPLETE, CUT = "complete", "cut"


@dataclass(slots=True)
class StreamRecord:
    """One stream: its tokens' texts, and how it ended: COMPLETE, CUT, or a status that is no 200."""

    number: int
    parts: list[str] = field(default_factory=list)
    end: str = ""

    @property
    def text(self) -> str:
        return "".join(self.parts)


async def read_stream(client: aiohttp.ClientSession, number: int, body: dict[str, Any]) -> StreamRecord:
    """Read a stream of `/generate_stream`. It is complete with its last event, the one that has the whole text."""
    record = StreamRecord(number)
    is_finished = False
    try:
        async with client.post("/generate_stream", json=body) as answer:
            if answer.status != 200:
                record.end = str(answer.status)
                return record
            async for line in answer.content:
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    record.parts.append(event["token"]["text"])
                    is_finished = event["generated_text"] is not None
        record.end = COMPLETE if is_finished else "ended without its last event"
    except aiohttp.ClientError:
        record.end = CUT
    return record


def make_body(number: int, num_tokens: int) -> dict[str, Any]:
    return {"inputs": f"{number} Once upon a time", "parameters": {"max_new_tokens": num_tokens}}


class StreamLoad:
    """Streams that run beside a test's body.

        async with StreamLoad(url, 16, 100) as load:
            await load.wait_until_running()
            ...
        assert load.count_ends() == {COMPLETE: 16}
    """

    def __init__(self, url: str, num_streams: int, num_tokens: int) -> None:
        self._url, self._num_streams, self._num_tokens = url, num_streams, num_tokens
        self.records: list[StreamRecord] = []

    async def __aenter__(self) -> "StreamLoad":
        self._client = aiohttp.ClientSession(self._url, timeout=aiohttp.ClientTimeout(total=100.0),
                                             connector=aiohttp.TCPConnector(limit=0))
        self._tasks = [asyncio.create_task(read_stream(self._client, number, make_body(number, self._num_tokens)))
                       for number in range(self._num_streams)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.records = await asyncio.gather(*self._tasks)
        await self._client.close()

    def count_ends(self) -> Counter[str]:
        return Counter(record.end for record in self.records)


async def read_metric(url: str, name: str) -> dict[str, float]:
    """Return a metric of every replica, of none if there is none."""
    async with aiohttp.ClientSession() as client, client.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines() if answer.status == 200 else []
    return {line.split('replica="')[1].split('"')[0]: float(line.split()[-1]) for line in lines
            if line.startswith(f"{name}{{")}


async def wait_for_metric(url: str, name: str, value: float) -> None:
    """Wait until a gauge has a value, in sum over all replicas."""
    async with asyncio.timeout(60.0):
        while sum((await read_metric(url, name)).values()) != value:  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.1)
