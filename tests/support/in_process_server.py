"""All of weft in one process: simulated shards behind real gRPC on unix sockets, the engine, the application on a port.

A test is a coroutine that `play` runs with a server. When a shard dies, or when the engine wants the shards replaced,
all of them are replaced together, as by the launcher. Tests wait for events: a step that is sent, a step that has
reached the gate, a call of the scheduler.
"""

import asyncio
import json
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from support.expected_streams import Heard, ask, expected
from support.fake_adapter_store import Store
from support.in_process_ranks import Gate, SimulatedShard, WatchedShards

from router.adapters.registry import Adapters
from router.api_keys import Keys
from router.config import RouterConfig
from router.engine.engine import Engine
from router.engine.stream import Stream
from router.http.app import create_app
from router.http.transport.generate import About
from router.http.transport.server import Server
from router.request import Request
from router.text.chat_template import plain_template
from router.text.tokenizer import byte_tokenizer
from router.validation.validator import Validator
from shard.config import ShardConfig, SimulatedConfig
from shard.simulator.worker import SimulatedWorker

LIMIT = 60.0  # seconds; the signal by which pytest ends a test does not reach uvloop
ROUTER = {item.name for item in fields(RouterConfig)}


class Weft:
    """Server in this process without HTTP: simulated ranks, the engine, and a launcher that replaces the ranks."""

    def __init__(self, folder: Path, config: RouterConfig, models: list[SimulatedConfig],
                 worker: type[SimulatedWorker], *, gated: bool) -> None:
        self.config = config
        self._worker = worker
        self.model = models[0]
        self.gate = Gate() if gated else None
        self.broken: list[str] = []  # why the engine wanted the shards replaced
        self.num_replaced = 0
        self._replacing: asyncio.Task[None] | None = None
        self._configs = [
            ShardConfig(f"unix:{folder}/{rank}", rank, len(models), 1.0, simulated=model)
            for rank, model in enumerate(models)]
        self.ranks = self._new_ranks()
        self.tokenizer = byte_tokenizer()
        self.shards = WatchedShards([config.socket for config in self._configs], config.shard_transport)
        self.engine = Engine(config, self.shards, self.tokenizer, self._on_broken)

    async def start(self) -> None:
        await asyncio.gather(*(rank.start() for rank in self.ranks))
        await self.engine.start()

    async def stop(self) -> None:
        if self._replacing is not None:
            await self._replacing
        if self.gate is not None:
            self.gate.open()
        await self.engine.stop()
        await self.kill()

    async def kill(self) -> None:
        await asyncio.gather(*(rank.kill() for rank in self.ranks))

    # -- actions of a test

    def submit(self, *args: Any, **more: Any) -> Stream:
        return self.engine.submit(ask(*args, **more))

    async def hear(self, *requests: Request) -> list[Heard]:
        return await asyncio.gather(*(Heard.all_of(self.engine.submit(request)) for request in requests))

    async def hear_right(self, *requests: Request) -> None:
        for heard in await self.hear(*requests):
            heard.check(self.model)

    def watch(self, name: str) -> "asyncio.Queue[int]":
        """Return a queue of the sequence numbers with which this method of the scheduler is called from now on."""
        method, seen = getattr(self.core, name), asyncio.Queue[int]()

        def watched(number: int, now: float) -> Any:
            seen.put_nowait(number)
            return method(number, now)

        setattr(self.core, name, watched)
        return seen

    @property
    def core(self) -> Any:
        return self.engine._core

    @property
    def calls(self) -> Counter[str]:
        return self.ranks[0].service.calls

    async def check_idle(self) -> None:
        """Assert that all requests have ended, the next one works, and router and shards hold nothing."""
        await self.engine.drained()
        await self.settle()
        while True:
            await self.hear_right(ask("the last", 2))
            await self.settle()
            if self.engine.is_ready:
                break
        self._check_zero()

    async def settle(self) -> None:
        """Wait until no step is in flight."""
        await asyncio.sleep(0)  # for the engine to plan once more: a Filter may be pending
        while self.engine._under_way:
            await asyncio.wait([pending.answer for pending in self.engine._under_way])
            await asyncio.sleep(0)

    def check_base(self) -> None:
        """Assert that no block is held if no request is unfinished and no step in flight; called after every test."""
        core = self.core
        if not (self.engine.num_unfinished or self.engine._under_way or self.engine._loop.done()):
            assert not len(core.sequences)
            assert not len(core.running)
            assert core.running.blocks.num_free == core.running.blocks.count

    def _check_zero(self) -> None:
        core = self.core
        assert not len(core.sequences)
        assert not len(core.running)
        assert not core._trials
        assert core.running.blocks.num_free == core.running.blocks.count
        assert not self.engine._clients._patience
        for rank in self.ranks:
            assert not rank.worker.ledger.sequences
            assert not any(rank.worker.ledger.blocks.num_holders)

    # -- the launcher's part

    def _new_ranks(self) -> list[SimulatedShard]:
        return [SimulatedShard(config, self._worker, self.gate, self._on_death) for config in self._configs]

    def _on_broken(self, why: str) -> None:
        self.broken.append(why)
        self.replace()

    def _on_death(self, shard: SimulatedShard) -> None:
        if shard in self.ranks:
            self.replace()

    def replace(self) -> "asyncio.Task[None]":
        """Kill all ranks and start new ones."""
        if self._replacing is None or self._replacing.done():
            self._replacing = asyncio.create_task(self._replace_all())
        return self._replacing

    async def _replace_all(self) -> None:
        self.num_replaced += 1
        await asyncio.gather(*(rank.kill() for rank in self.ranks))
        self._configs = [
            replace(rank.config, simulated=replace(rank.config.simulated, faults=rank.remaining_faults()))
            for rank in self.ranks]
        self.ranks = self._new_ranks()
        await asyncio.gather(*(rank.start() for rank in self.ranks))


class Served(Weft):
    """Server in this process with its HTTP application on a port."""

    store: Store | None = None  # of adapters, if they are served

    async def start(self) -> None:
        await super().start()
        adapters = None if self.store is None else Adapters(self.config, self.store, self.engine.supply.resources)
        self.validator = Validator(self.config, self.engine.facts, self.tokenizer, plain_template(),
                                   self.engine.supply.resources.of, adapters=adapters)
        self.server = Server(create_app(self.engine, self.validator, self.config, Keys.of(self.config), About()))
        # Small buffers in the kernel, so that a client that does not read is noticed after few bytes.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            self.port = await self.server.open(listener)
        self.http = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", connector=aiohttp.TCPConnector(limit=0))

    async def stop(self) -> None:
        await self.http.close()
        await super().stop()
        await self.server.close()
        self.validator.close()
        if self.validator.adapters is not None:
            await self.validator.adapters.close()

    async def generate(self, prompt: str, length: int = 12, **parameters: Any) -> aiohttp.ClientResponse:
        return await self.http.post("/generate", json=body(prompt, length, **parameters))

    async def stream(self, prompt: str, length: int = 12, **parameters: Any) -> list[dict[str, Any]]:
        async with self.http.post("/generate_stream", json=body(prompt, length, **parameters)) as answer:
            assert answer.status == 200
            return events_of(await answer.text())

    def expected_text(self, prompt: str, length: int = 12) -> str:
        return expected(ask(prompt, length), self.model)[1]


def body(prompt: str, length: int = 12, **parameters: Any) -> dict[str, Any]:
    return {"inputs": prompt, "parameters": {"max_new_tokens": length, **parameters}}


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: ")]


@asynccontextmanager
async def weft(folder: Path, *, http: bool = False, ranks: int = 1, gated: bool = False,
               worker: type[SimulatedWorker] = SimulatedWorker, faults: str | tuple[str, ...] = "",
               store: Store | None = None, **settings: Any) -> AsyncIterator[Any]:
    """Start a server, yield it, and check and stop it at the end.

    `faults` is the fault script of rank 0, or one script per rank. Each setting goes to RouterConfig if this has a
    field of that name, else to the simulated model.
    """
    config = RouterConfig(**{name: value for name, value in settings.items() if name in ROUTER})
    model = SimulatedConfig(**{"time_scale": 1.0 if gated else 0.0, "num_blocks": 256}
                            | {name: value for name, value in settings.items() if name not in ROUTER})
    scripts = (faults, *[""] * (ranks - 1)) if isinstance(faults, str) else faults
    models = [replace(model, faults=script) for script in scripts]
    made = (Served if http else Weft)(folder, config, models, worker, gated=gated)
    if store is not None:
        made.store = store  # type: ignore[union-attr]
    try:
        await made.start()
    except BaseException:
        await made.kill()
        raise
    try:
        yield made
        made.check_base()
    finally:
        await made.stop()


def play(story: Callable[[Any], Awaitable[None]], folder: Path, **given: Any) -> None:
    async def told() -> None:
        async with asyncio.timeout(LIMIT), weft(folder, **given) as made:
            await story(made)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=2.0)  # for tasks that are about to end

    # The loop that the router runs on.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, flat_logs():
        runner.run(told())


@contextmanager
def flat_logs() -> Iterator[None]:
    """Replace tracebacks in log records by text.

    pytest keeps log records; tracebacks in them would keep channels and servers from being closed.
    """
    loggers = [logging.getLogger(name) for name in ("router.engine.engine", "shard.rpc.ordering")]
    for logger in loggers:
        logger.addFilter(flatten)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(flatten)


def flatten(record: logging.LogRecord) -> bool:
    record.msg, record.args = record.getMessage(), None
    if record.exc_info:
        record.msg += f": {record.exc_info[1]!r}"
        record.exc_info = None
    return True
