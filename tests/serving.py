"""All of weft in one process: simulated shards behind real gRPC on unix sockets, the engine, the application on a port.

A test tells a story to it with `play`. Shards that die, or that the engine wants replaced, are replaced, all of them
together, which is the launcher's part. Waiting is for events: a step that is sent, a step that stands at the gate, a
call of the core.
"""

import asyncio
import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import uvloop
from grpc_health.v1 import health_pb2_grpc
from world import expected_tokens

from router.config import RouterConfig
from router.engine import Engine
from router.http.app import create_app
from router.http.server import Server
from router.request import FinishReason, Request
from router.shards import Shards
from router.stream import FailedEvent, FinishedEvent, PromptEvent, Stream, TokenEvent
from router.tokenizer import byte_tokenizer
from router.validation import Validator
from shard.config import ShardConfig, SimulatedConfig
from shard.pb import shard_pb2 as pb
from shard.pb import shard_pb2_grpc
from shard.server import OPTIONS, Presence
from shard.service import ShardService
from shard.simulated import SimulatedWorker

END = 256
LIMIT = 60.0  # seconds; the signal by which pytest ends a test does not reach uvloop
STEPS = (pb.PrefillRequest, pb.DecodeRequest)
ROUTER = {item.name for item in fields(RouterConfig)}

ids = count()


def ask(prompt: str = "a loom", length: int = 12, **more: Any) -> Request:
    return Request(f"{next(ids)}", tuple(prompt.encode()), length, end_tokens=frozenset([END]), **more)


# ---------------------------------------------------------------------------------------------------------------------
# What a client should hear, and what it heard


def expected(request: Request, model: SimulatedConfig) -> tuple[list[int], str, FinishReason]:
    """The tokens, the text and the end of a request that nothing happens to."""
    said: list[int] = []
    text = ""
    for token in expected_tokens(request, request.max_new_tokens, model):
        said.append(token)
        text += chr(token) if token < END else ""
        if len(said) < request.max_new_tokens and token in request.end_tokens:
            return said, text, FinishReason.END_TOKEN
        if len(said) < request.max_new_tokens and text.endswith(request.stop_strings or ("\0",)):
            return said, text, FinishReason.STOP_STRING
    return said, text, FinishReason.LENGTH


@dataclass(slots=True)
class Heard:
    request: Request
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    prompt_logprobs: dict[int, float] = field(default_factory=dict)
    end: FinishedEvent | None = None
    error: Exception | None = None

    @classmethod
    async def all_of(cls, stream: Stream) -> "Heard":
        heard = cls(stream.request)
        while heard.end is None and heard.error is None:
            heard.take(await stream.events())
        return heard

    def take(self, events: list[Any]) -> None:
        for event in events:
            assert self.end is None, "an event after the end"
            assert self.error is None, "an event after the failure"
            match event:
                case TokenEvent():
                    self.tokens.append(event.id)
                    self.text += "" if event.special else event.text
                case PromptEvent(start, logprobs):
                    assert not set(range(start, start + len(logprobs))) & self.prompt_logprobs.keys(), "told twice"
                    self.prompt_logprobs.update(enumerate(logprobs, start))
                case FinishedEvent():
                    self.end = event
                case FailedEvent(error):
                    self.error = error

    def check(self, model: SimulatedConfig) -> None:
        """Everything came, once, in order, and is this client's own."""
        assert self.error is None, f"failed: {self.error!r}"
        assert self.end is not None
        assert (self.tokens, self.text, self.end.reason) == expected(self.request, model)
        assert (self.end.text, self.end.num_tokens) == (self.text, len(self.tokens))

    def check_beginning(self, model: SimulatedConfig) -> None:
        """What came before a failure is right."""
        assert self.tokens == expected(self.request, model)[0][:len(self.tokens)]


# ---------------------------------------------------------------------------------------------------------------------
# The shards


class Gate:
    """Where the steps of a shard stop until they are let through. Called in the compute thread."""

    def __init__(self) -> None:
        self.num_passed = 0
        self._permits = threading.Semaphore(0)
        self._is_open = False
        self._arrivals: asyncio.Queue[None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def __call__(self, seconds: float) -> None:
        self._loop.call_soon_threadsafe(self._arrivals.put_nowait, None)
        self._permits.acquire()
        self.num_passed += 1
        if self._is_open:
            self._permits.release()

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._permits.release()

    def open(self) -> None:
        self._is_open = True
        self._permits.release()

    async def arrival(self) -> None:
        """Wait until one more step stands here."""
        await self._arrivals.get()


class Killed(Exception):
    """Ends what a dead shard was about to do."""


class SimulatedShard:
    """A process that is none: it may die all the same."""

    def __init__(self, config: ShardConfig, kind: type[SimulatedWorker], sleep: Callable[[float], object] | None,
                 on_death: Callable[["SimulatedShard"], None]) -> None:
        self.config = config
        self._on_death = partial(asyncio.get_running_loop().call_soon_threadsafe, on_death, self)
        self._dead = threading.Event()
        self.worker = kind(config, sleep, self._die)
        self.service = ShardService(self.worker, config.gap_timeout, self.worker.lateness)
        self.presence = Presence(60.0, lambda: None)
        self._server = grpc.aio.server(options=OPTIONS)
        shard_pb2_grpc.add_ShardServicer_to_server(self.service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.presence, self._server)
        self._server.add_insecure_port(config.socket)

    async def start(self) -> None:
        await self._server.start()

    async def kill(self) -> None:
        """Nobody gets an answer any more."""
        self.presence.close()
        await self._server.stop(None)
        del self._server  # a log record or a cache that still knows us shall not keep the descriptors of gRPC
        self._dead.set()
        self.service.stop()
        self.service.close()
        await self.service.silence()

    def remaining_faults(self) -> str:
        """What has not struck yet may strike the successor; a poison stays one."""
        parts = [part for part in self.config.simulated.faults.split(";") if part]
        return ";".join(part for part, fault in zip(parts, self.worker.faults, strict=True)
                        if not fault.fired or fault.kind == "poison")

    def _die(self) -> None:
        self._on_death()
        self._dead.wait()
        raise Killed


class WatchedShards(Shards):
    """Remembers what was sent."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(addresses)
        self.sent: list[list[Any]] = []
        self.num_steps = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def send(self, messages: list[Any], timeout: float) -> Awaitable[Any]:
        self.sent.append(messages)
        self.num_steps += isinstance(messages[-1], STEPS)
        for steps, future in self._waiting:
            if steps <= self.num_steps and not future.done():
                future.set_result(None)
        return super().send(messages, timeout)

    @property
    def num_sent_again(self) -> int:
        """How often a sequence entered a batch that had been in one before: after a yield, a hold or a loss."""
        entered = [number for messages in self.sent for message in messages
                   if isinstance(message, pb.PrefillRequest) for number in message.sequences.ids]
        return len(entered) - len(set(entered))

    async def reach(self, steps: int) -> None:
        """Wait until so many steps have been sent."""
        if self.num_steps < steps:
            self._waiting.append((steps, asyncio.get_running_loop().create_future()))
            await self._waiting[-1][1]


# ---------------------------------------------------------------------------------------------------------------------
# The whole


class Weft:
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
        self.shards = WatchedShards([config.socket for config in self._configs])
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

    # -- what a story does

    def submit(self, *args: Any, **more: Any) -> Stream:
        return self.engine.submit(ask(*args, **more))

    async def hear(self, *requests: Request) -> list[Heard]:
        return await asyncio.gather(*(Heard.all_of(self.engine.submit(request)) for request in requests))

    async def hear_right(self, *requests: Request) -> None:
        for heard in await self.hear(*requests):
            heard.check(self.model)

    def watch(self, name: str) -> "asyncio.Queue[int]":
        """The numbers of the sequences that this method of the core is called with from now on."""
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
        """Everybody got an end, the next request works, and everything is back to zero on both sides."""
        await self.engine.drained()
        await self.settle()
        while True:
            await self.hear_right(ask("the last", 2))
            await self.settle()
            if self.engine.is_ready:
                break
        self._check_zero()

    async def settle(self) -> None:
        """Let everything that is under way come back."""
        await asyncio.sleep(0)  # for the engine to plan once more: a Filter may be owed
        while self.engine._under_way:
            await asyncio.wait([pending.answer for pending in self.engine._under_way])
            await asyncio.sleep(0)

    def _check_zero(self) -> None:
        core = self.core
        assert not core._sequences
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
        """Kill all ranks and start them anew."""
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
    """The same, behind HTTP."""

    async def start(self) -> None:
        await super().start()
        self.validator = Validator(self.config, self.engine.facts, self.tokenizer)
        self.server = Server(create_app(self.engine, self.validator, self.config))
        # Small buffers in the kernel, so that a client that does not read is noticed after few bytes.
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.port = await self.server.open("", 0, listener.detach())
        self.http = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", connector=aiohttp.TCPConnector(limit=0))

    async def stop(self) -> None:
        await self.http.close()
        await super().stop()
        await self.server.close()
        self.validator.close()

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
               **settings: Any) -> AsyncIterator[Any]:
    """`faults` are those of rank 0, or one script per rank. Settings are the router's where it has one of that name,
    else the simulated model's."""
    config = RouterConfig(**{name: value for name, value in settings.items() if name in ROUTER})
    model = SimulatedConfig(**{"time_scale": 1.0 if gated else 0.0, "num_blocks": 256}
                            | {name: value for name, value in settings.items() if name not in ROUTER})
    scripts = (faults, *[""] * (ranks - 1)) if isinstance(faults, str) else faults
    models = [replace(model, faults=script) for script in scripts]
    made = (Served if http else Weft)(folder, config, models, worker, gated=gated)
    try:
        await made.start()
    except BaseException:
        await made.kill()
        raise
    try:
        yield made
    finally:
        await made.stop()


def play(story: Callable[[Any], Awaitable[None]], folder: Path, **given: Any) -> None:
    async def told() -> None:
        async with asyncio.timeout(LIMIT), weft(folder, **given) as made:
            await story(made)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=2.0)  # what is about to end may do so

    # The loop that the router runs on.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, flat_logs():
        runner.run(told())


@contextmanager
def flat_logs() -> Iterator[None]:
    """pytest keeps log records; the tracebacks in them would keep channels and servers from being closed."""
    loggers = [logging.getLogger(name) for name in ("router.engine", "shard.service")]
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
