"""Many concurrent streams from a running server, a disturbance in the middle, and a health probe.

    disturbed = hear_all(weft, disturb)

`disturb` is called when about a fifth of all tokens were received, and has finished when `hear_all` returns.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from support.weft_process import PROMPT, Weft

NUM_STREAMS, LENGTH = 32, 60
INTERVAL = 0.05  # seconds between two requests of a probe

PATIENCE = 60.0  # seconds after which a probe gives up

Json = dict[str, Any]


class Probe:
    """Health probe like that of a load balancer, over a new connection each time."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def status(self, path: str) -> int:
        """Return the HTTP status of a GET, or 0 if there is no connection."""
        try:
            async with self._http.get(path, headers={"Connection": "close"}) as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            return 0

    async def until(self, path: str, status: int) -> float:
        """Poll `path` until it has this status; return the seconds that this took."""
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while await self.status(path) != status:  # noqa: ASYNC110 - a probe polls
                await asyncio.sleep(INTERVAL)
        return time.monotonic() - began


Disturb = Callable[[Probe], Awaitable[None]]


def asked(number: int) -> Json:
    """Return the request body of a stream: even numbers are greedy, odd numbers sample with a seed of their own."""
    draws = {"do_sample": True, "seed": number, "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}
    return {"inputs": f"{number} " * (1 + 3 * number) + PROMPT,
            "parameters": {"max_new_tokens": LENGTH} | (draws if number % 2 else {})}


async def leave_alone(_: Probe) -> None:
    """Do nothing: no disturbance."""


async def listen(http: aiohttp.ClientSession, body: Json, on_token: Callable[[], None]) -> list[Json]:
    events = []
    async with http.post("/generate_stream", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data:"):
                events.append(json.loads(line[5:]))
                on_token()
    return events


async def hear(http: aiohttp.ClientSession, bodies: list[Json], disturb: Disturb) -> list[list[Json]]:
    num_heard, middle = 0, asyncio.Event()

    def count() -> None:
        nonlocal num_heard
        num_heard += 1
        if num_heard == sum(body["parameters"]["max_new_tokens"] for body in bodies) // 5:
            middle.set()

    async def disturb_in_the_middle() -> None:
        await middle.wait()
        await disturb(Probe(http))

    *streams, _ = await asyncio.gather(*(listen(http, body, count) for body in bodies), disturb_in_the_middle())
    return streams


def hear_all(weft: Weft, disturb: Disturb = leave_alone, bodies: list[Json] | None = None) -> list[list[Json]]:
    """Run all streams and return the list of events of each."""
    async def main() -> list[list[Json]]:
        async with aiohttp.ClientSession(weft.url, connector=aiohttp.TCPConnector(limit=0)) as http:
            return await hear(http, bodies or [asked(number) for number in range(NUM_STREAMS)], disturb)
    return asyncio.run(main())
