"""Many concurrent streams from a running server, a disturbance in the middle, and a health probe.

    disturbed = run_disturbed_streams(weft, disturb)

`disturb` is called when about a fifth of all tokens were received, and has finished when `run_disturbed_streams`
returns.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from support.servers.weft_process import DEFAULT_PROMPT, WeftProcess

NUM_STREAMS, OUTPUT_TOKENS = 32, 60
PROBE_INTERVAL_SECONDS = 0.05  # between two requests of a probe
PROBE_TIMEOUT_SECONDS = 60.0  # after which a probe gives up

JsonObject = dict[str, Any]


class HealthProbe:
    """Health probe like that of a load balancer, over a new connection each time."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def get_status(self, path: str) -> int:
        """Return the HTTP status of a GET, or 0 if there is no connection."""
        try:
            async with self._http.get(path, headers={"Connection": "close"}) as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            return 0

    async def wait_for_status(self, path: str, status: int) -> float:
        """Poll `path` until it has this status; return the seconds that this took."""
        started_at = time.monotonic()
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            while await self.get_status(path) != status:  # noqa: ASYNC110 - a probe polls
                await asyncio.sleep(PROBE_INTERVAL_SECONDS)
        return time.monotonic() - started_at


Disturbance = Callable[[HealthProbe], Awaitable[None]]


def make_stream_body(number: int) -> JsonObject:
    """Return the request body of a stream: even numbers are greedy, odd numbers sample with a seed of their own."""
    sampling_parameters = {"do_sample": True, "seed": number, "temperature": 0.8, "top_p": 0.9,
                           "repetition_penalty": 1.1}
    return {"inputs": f"{number} " * (1 + 3 * number) + DEFAULT_PROMPT,
            "parameters": {"max_new_tokens": OUTPUT_TOKENS} | (sampling_parameters if number % 2 else {})}


async def disturb_nothing(_: HealthProbe) -> None:
    """Do nothing: no disturbance."""


async def read_stream_events(http: aiohttp.ClientSession, body: JsonObject,
                             on_token: Callable[[], None]) -> list[JsonObject]:
    events = []
    async with http.post("/generate_stream", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data:"):
                events.append(json.loads(line[5:]))
                on_token()
    return events


async def read_disturbed_streams(http: aiohttp.ClientSession, bodies: list[JsonObject],
                                 disturb: Disturbance) -> list[list[JsonObject]]:
    num_received, middle = 0, asyncio.Event()

    def count_token() -> None:
        nonlocal num_received
        num_received += 1
        if num_received == sum(body["parameters"]["max_new_tokens"] for body in bodies) // 5:
            middle.set()

    async def disturb_in_the_middle() -> None:
        await middle.wait()
        await disturb(HealthProbe(http))

    *streams, _ = await asyncio.gather(*(read_stream_events(http, body, count_token) for body in bodies),
                                       disturb_in_the_middle())
    return streams


def run_disturbed_streams(server: WeftProcess, disturb: Disturbance = disturb_nothing,
                          bodies: list[JsonObject] | None = None) -> list[list[JsonObject]]:
    """Run all streams and return the list of events of each."""
    async def main() -> list[list[JsonObject]]:
        async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as http:
            return await read_disturbed_streams(http, bodies
                                                or [make_stream_body(number) for number in range(NUM_STREAMS)], disturb)
    return asyncio.run(main())
