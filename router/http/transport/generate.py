"""Code shared by all dialects: the services that they use, and how requests become whole answers or a stream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from aiohttp import web

from router.config import RouterConfig
from router.engine.resources import Supply
from router.engine.stream import Stream
from router.errors import Cancelled
from router.http.transport.collect import Answer, Collector
from router.http.transport.headers import Caller
from router.http.transport.metrics import FAILURE
from router.http.transport.sse import EventStream, Outbox, event_stream
from router.request import Request, Tenant
from router.scheduler.plan import ModelFacts
from router.telemetry.counters import Tally
from router.telemetry.request_log import Account
from router.validation.validator import Choice, Validator

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class About:
    """The model's name and notice, as clients see them."""

    name: str = ""
    notice: str = ""  # what users should know about the model


class Engine(Protocol):
    """Interface of the engine that the dialects use."""

    @property
    def facts(self) -> ModelFacts: ...

    def submit(self, request: Request, came: float | None = None, traceparent: str = "") -> Stream: ...

    def account(self, request_id: str) -> Account | None: ...

    def may_use(self, request_id: str, tenant: Tenant) -> bool: ...

    def ailment(self) -> str: ...

    @property
    def supply(self) -> Supply: ...

    @property
    def tally(self) -> Tally: ...

    def metrics(self) -> str: ...


@dataclass(frozen=True, slots=True)
class House:
    """Services that every dialect uses."""

    engine: Engine
    validator: Validator
    config: RouterConfig
    about: About
    outbox: Outbox

    def submit(self, choice: Choice, caller: Caller) -> Stream:
        if caller.traced is None:
            return self.engine.submit(choice.request, caller.came)
        stream = self.engine.submit(choice.request, caller.came, caller.traced.traceparent)
        account = self.engine.account(choice.request.id)
        assert account is not None, "it was opened just now"
        caller.traced.follow(choice, account)
        return stream

    @property
    def is_tgi(self) -> bool:
        """Whether to reproduce quirks of text-generation-inference (--compat tgi)."""
        return self.config.compat == "tgi"

    @property
    def is_lorax(self) -> bool:
        return self.config.compat == "lorax"


@asynccontextmanager
async def open_stream(request: web.Request, headers: Mapping[str, str], patience: float,
                      told: Callable[[Exception], str]) -> AsyncIterator[EventStream]:
    """Open an event stream for the block. An exception of the block becomes the last event, rendered by `told`;
    Cancelled and ConnectionError abort the connection."""
    async with event_stream(request, headers, patience) as out:
        try:
            yield out
            if out.failure is not None:
                request[FAILURE] = type(out.failure)
        except (Cancelled, ConnectionError) as error:
            request[FAILURE] = type(error)
            out.cut()
        except Exception as error:
            request[FAILURE] = type(error)
            out.write(told(error).encode())


async def collected(house: House, choices: Sequence[Choice], caller: Caller) -> list[Answer]:
    """Return the answers of all choices. If one fails or the client disconnects, all are cancelled."""
    with submitted(house, choices, caller) as streams:
        return await together(Collector(*pair).answer() for pair in zip(streams, choices, strict=True))


@contextmanager
def submitted(house: House, choices: Sequence[Choice], caller: Caller) -> Iterator[list[Stream]]:
    with ExitStack() as leaving:
        streams = []
        for choice in choices:
            streams.append(house.submit(choice, caller))
            leaving.callback(streams[-1].close)
        yield streams


async def together(work: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Run coroutines concurrently, return their results. Raises the first failure, not an ExceptionGroup."""
    parts = [*work]
    if len(parts) == 1:
        return [await parts[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
