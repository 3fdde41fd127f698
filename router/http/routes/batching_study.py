"""Dialect of the effective-batching study: `POST /inference`, and `GET /stats` with the numbers of its plots.

The latency of a request, sent in a header, starts when a handler takes it: with `--max-handlers N`, as soon as fewer
than N other requests have one.
Throughput is tokens divided by the sum of all latencies, not by wall-clock time.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from router.errors import InvalidRequest
from router.http.transport.body import Foreign, json_answer, read_untyped
from router.http.transport.generate import House, collected
from router.http.transport.headers import Caller, identity
from router.text.prompts import Names
from router.validation.validator import Wanted

FIELDS = Names("prompt", "num_tokens", truncate="", must_fit=sys.maxsize)  # reject, never shorten, what is too long
NAMES = {"none": "nobatch", "continuous": "dynamic"}  # the study's names of --batching, where they differ
SECONDS = "x-weft-seconds"  # latency as in /stats: clients cannot see when a handler took the request
WHERE = Path("data")  # relative to the server's working directory
HINT = "POST a prompt and num_tokens to /inference; GET /stats for latencies and throughput of all that were answered\n"

log = logging.getLogger(__name__)


class InferenceRequest(Foreign):
    prompt: str
    num_tokens: Any

    def wanted(self, caller: Caller) -> Wanted:
        """Return a request for exactly `num_tokens` sampled tokens, beyond end tokens if need be."""
        return Wanted(prompt=self.prompt, names=FIELDS, max_new_tokens=self._count(), do_sample=True,
                      ignore_eos=True, tenant=caller.tenant, request_id=caller.request_id, deadline=caller.deadline)

    def _count(self) -> int:
        """Return `num_tokens`, which may be anything that `int` accepts, as in the study's server."""
        try:
            count = int(self.num_tokens)
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest(f"`num_tokens` must be a number, got {self.num_tokens!r:.100}") from None
        if count < 1:
            raise InvalidRequest(f"`num_tokens` must be at least 1, got {count}")
        return count


class Total(NamedTuple):
    """Number and summed latency of answered requests for the same number of tokens."""

    requests: int = 0
    seconds: float = 0.0


class Latencies:
    """Latencies of answered requests, by the number of tokens that they asked for."""

    def __init__(self) -> None:
        self._totals: dict[int, Total] = {}

    def add(self, num_tokens: int, seconds: float) -> None:
        requests, before = self._totals.get(num_tokens, Total())
        self._totals[num_tokens] = Total(requests + 1, before + seconds)

    def told(self) -> dict[str, float | None]:
        each = self._totals.items()
        count, elapsed = sum(total.requests for _, total in each), sum(total.seconds for _, total in each)
        tokens = sum(length * total.requests for length, total in each)
        return {"latency-per-token": sum(total.seconds / length for length, total in each) / count if count else None,
                "throughput": tokens / elapsed if elapsed else None,
                "total-tokens-handled": tokens, "total-elapsed-time": elapsed}

    def lines(self) -> str:
        """Return CSV lines of a number of tokens and the mean latency in seconds."""
        return "".join(f"{length},{total.seconds / total.requests}\n" for length, total in self._totals.items())


class Inference:
    def __init__(self, house: House, now: Callable[[], float] = time.monotonic) -> None:
        self._house, self._now = house, now
        config = house.config
        self._heard: AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(config.max_handlers) if config.max_handlers else nullcontext())
        self._file = WHERE / f"token_data_{NAMES.get(config.batching, config.batching)}.csv"
        self._latencies = Latencies()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/inference", self.inference), web.get("/stats", self.stats), web.post("/", self.hint)]

    async def inference(self, request: web.Request) -> web.Response:
        async with self._heard:
            began, caller = self._now(), Caller.of(request, self._house.engine)
            asked = await read_untyped(request, InferenceRequest)
            choices = await self._house.validator.choices(asked.wanted(caller))
            [answer] = await collected(self._house, choices, caller)
            seconds = self._now() - began
            self._latencies.add(answer.end.num_tokens, seconds)
        return json_answer({"completion": asked.prompt + answer.end.text},
                           identity(request) | {SECONDS: f"{seconds:.6f}"})

    async def stats(self, _: web.Request) -> web.Response:
        await asyncio.to_thread(write, self._file, self._latencies.lines())
        return json_answer(self._latencies.told())

    async def hint(self, _: web.Request) -> web.Response:
        return web.Response(text=HINT)


def write(path: Path, lines: str) -> None:
    """Write the file. Failures are only logged, so that /stats still answers."""
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(lines)
    except OSError as error:
        log.warning("cannot write %s: %s", path, error.strerror)
