"""All of weft in one process: simulated shards behind real gRPC on unix sockets, the engine, the application on a port.

A test is a coroutine that `play_scenario` runs with a server. When a shard dies, or when the engine wants the shards
replaced, all of them are replaced together, as by the launcher. Tests wait for events: a step that is sent, a step that
has reached the gate, a call of the scheduler.
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
from support.scheduling.method_overrides import override_methods
from support.servers.expected_streams import ReceivedStream, compute_expected_output, make_text_request
from support.servers.fake_adapter_store import FakeAdapterStore
from support.shards.in_process_ranks import RecordingShardGroup, SimulatedShard, StepGate

from router.adapters.registry import AdapterRegistry
from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.engine.engine import Engine
from router.engine.output_stream import RequestStream
from router.http.server import HttpServer, create_app
from router.http.transport.services import ServedModel
from router.request import Request
from router.text.chat_template import simulated_model_template
from router.text.tokenizer import create_byte_tokenizer
from router.validation.validator import RequestValidator
from shard.config import ShardConfig, SimulatedConfig
from shard.simulator.worker import SimulatedWorker

TEST_TIMEOUT_SECONDS = 60.0  # the signal by which pytest ends a test does not reach uvloop
ROUTER_SETTING_NAMES = {item.name for item in fields(RouterConfig)}


class InProcessWeft:
    """Server in this process without HTTP: simulated ranks, the engine, and a launcher that replaces the ranks."""

    def __init__(self, folder: Path, config: RouterConfig, models: list[SimulatedConfig],
                 worker: type[SimulatedWorker], *, gated: bool) -> None:
        self.config = config
        self._worker_class = worker
        self.model = models[0]
        self.gate = StepGate() if gated else None
        self.replacement_reasons: list[str] = []  # reasons for which the engine had the shards replaced
        self.num_replacements = 0
        self._replacement_task: asyncio.Task[None] | None = None
        self._configs = [
            ShardConfig(f"unix:{folder}/{rank}", rank, len(models), 1.0, simulated=model)
            for rank, model in enumerate(models)]
        self.ranks = self._make_ranks()
        self.tokenizer = create_byte_tokenizer()
        self.shards = RecordingShardGroup([config.socket for config in self._configs], config.shard_transport)
        self.excused_deaths: list[int] = []
        self.engine = Engine(config, self.shards, self.tokenizer, self._on_replacement_requested,
                             on_culprit_found=self.excused_deaths.append)

    async def start(self) -> None:
        await asyncio.gather(*(rank.start() for rank in self.ranks))
        await self.engine.start()

    async def stop(self) -> None:
        if self._replacement_task is not None:
            await self._replacement_task
        if self.gate is not None:
            self.gate.release_all()
        await self.engine.stop()
        await self.kill()

    async def kill(self) -> None:
        await asyncio.gather(*(rank.kill() for rank in self.ranks))

    # -- actions of a test

    def submit(self, *args: Any, **request_fields: Any) -> RequestStream:
        return self.engine.submit(make_text_request(*args, **request_fields))

    async def collect_streams(self, *requests: Request) -> list[ReceivedStream]:
        return await asyncio.gather(*(ReceivedStream.from_stream(self.engine.submit(request)) for request in requests))

    async def check_streams(self, *requests: Request) -> None:
        for received in await self.collect_streams(*requests):
            received.check_output(self.model)

    def watch_scheduler_calls(self, method_name: str) -> "asyncio.Queue[int]":
        """Return a queue of the sequence numbers with which this method of the scheduler is called from now on."""
        method, called_numbers = getattr(self.scheduler, method_name), asyncio.Queue[int]()

        def watched(number: int, now: float) -> Any:
            called_numbers.put_nowait(number)
            return method(number, now)

        override_methods(self.scheduler, **{method_name: watched})
        return called_numbers

    def record_num_unfinished(self) -> list[int]:
        """Return a list that gets the number of unfinished requests at each submission."""
        numbers: list[int] = []
        submit = self.engine.submit

        def submit_and_record(*submit_args: Any) -> RequestStream:
            stream = submit(*submit_args)
            numbers.append(len(self.engine._client_streams))
            return stream

        self.engine.submit = submit_and_record  # type: ignore[method-assign]
        return numbers

    @property
    def scheduler(self) -> Any:
        return self.engine._scheduler

    @property
    def rpc_counts(self) -> Counter[str]:
        return self.ranks[0].service.num_calls

    async def check_idle(self) -> None:
        """Assert that all requests have ended, the next one works, and router and shards hold nothing."""
        await self.engine.wait_until_drained()
        await self.wait_for_steps_in_flight()
        while True:
            await self.check_streams(make_text_request("the last", 2))
            await self.wait_for_steps_in_flight()
            if self.engine.has_shards:
                break
        self._check_nothing_held()

    async def wait_for_steps_in_flight(self) -> None:
        """Wait until no step is in flight."""
        await asyncio.sleep(0)  # for the engine to plan once more: a Filter may be pending
        while self.engine._plans_in_flight:
            await asyncio.wait([pending.answer for pending in self.engine._plans_in_flight])
            await asyncio.sleep(0)

    def check_blocks_free(self) -> None:
        """Assert that no block and no sequence is held, on the shards neither, if no request is unfinished and no step
        in flight; called after every test."""
        scheduler = self.scheduler
        if self.engine._client_streams or self.engine._plans_in_flight or self.engine._loop_task.done():
            return
        assert not len(scheduler.sequences)
        assert not len(scheduler.running)
        assert scheduler.running.block_pool.num_free == scheduler.running.block_pool.num_blocks
        if self.engine.has_shards and not any(batch.needs_filter for batch in scheduler.running.batches):
            for rank in self.ranks:
                assert not rank.worker.shard_state.sequences
                assert not any(rank.worker.shard_state.block_usage.num_holders)

    def _check_nothing_held(self) -> None:
        scheduler = self.scheduler
        assert not len(scheduler.sequences)
        assert not len(scheduler.running)
        assert not scheduler._fault_isolation.suspect_sets
        assert scheduler.running.block_pool.num_free == scheduler.running.block_pool.num_blocks
        assert not self.engine._client_streams._slow_client_timers
        for rank in self.ranks:
            assert not rank.worker.shard_state.sequences
            assert not any(rank.worker.shard_state.block_usage.num_holders)

    # -- the launcher's part

    def _make_ranks(self) -> list[SimulatedShard]:
        return [SimulatedShard(config, self._worker_class, self.gate, self._on_death) for config in self._configs]

    def _on_replacement_requested(self, reason: str) -> None:
        self.replacement_reasons.append(reason)
        self.replace_ranks()

    def _on_death(self, shard: SimulatedShard) -> None:
        if shard in self.ranks:
            self.replace_ranks()

    def replace_ranks(self) -> "asyncio.Task[None]":
        """Kill all ranks and start new ones."""
        if self._replacement_task is None or self._replacement_task.done():
            self._replacement_task = asyncio.create_task(self._replace_all_ranks())
        return self._replacement_task

    async def _replace_all_ranks(self) -> None:
        self.num_replacements += 1
        await asyncio.gather(*(rank.kill() for rank in self.ranks))
        self._configs = [
            replace(rank.config, simulated=replace(rank.config.simulated, faults=rank.remaining_faults()))
            for rank in self.ranks]
        self.ranks = self._make_ranks()
        await asyncio.gather(*(rank.start() for rank in self.ranks))


class InProcessHttpWeft(InProcessWeft):
    """Server in this process with its HTTP application on a port."""

    adapter_store: FakeAdapterStore | None = None  # of adapters, if they are served

    async def start(self) -> None:
        await super().start()
        adapters = None if self.adapter_store is None else AdapterRegistry(self.config, self.adapter_store,
                                                                           self.engine.adapter_grammar_controller.loader)
        self.validator = RequestValidator(self.config, self.engine.model_info, self.tokenizer,
                                          simulated_model_template(),
                                          self.engine.adapter_grammar_controller.loader.get_or_register,
                                          adapter_registry=adapters)
        self.server = HttpServer(create_app(self.engine, self.validator, self.config, ApiKeys.from_config(self.config),
                                            ServedModel()))
        # Small buffers in the kernel, so that a client that does not read is noticed after few bytes.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            self.port = await self.server.start(listener)
        self.http_session = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}",
                                                  connector=aiohttp.TCPConnector(limit=0))

    async def stop(self) -> None:
        await self.http_session.close()
        await super().stop()
        await self.server.close()
        self.validator.close()
        if self.validator.adapter_registry is not None:
            await self.validator.adapter_registry.close()

    async def generate(self, prompt: str, max_new_tokens: int = 12, **parameters: Any) -> aiohttp.ClientResponse:
        return await self.http_session.post("/generate", json=make_generate_body(prompt, max_new_tokens, **parameters))

    async def generate_stream(self, prompt: str, max_new_tokens: int = 12, **parameters: Any) -> list[dict[str, Any]]:
        async with self.http_session.post("/generate_stream",
                                          json=make_generate_body(prompt, max_new_tokens, **parameters)) as answer:
            assert answer.status == 200
            return parse_stream_events(await answer.text())

    def compute_expected_text(self, prompt: str, max_new_tokens: int = 12) -> str:
        return compute_expected_output(make_text_request(prompt, max_new_tokens), self.model)[1]


def make_generate_body(prompt: str, max_new_tokens: int = 12, **parameters: Any) -> dict[str, Any]:
    return {"inputs": prompt, "parameters": {"max_new_tokens": max_new_tokens, **parameters}}


def parse_stream_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: ")]


@asynccontextmanager
async def run_in_process_weft(folder: Path, *, http: bool = False, ranks: int = 1, gated: bool = False,
                              worker: type[SimulatedWorker] = SimulatedWorker, faults: str | tuple[str, ...] = "",
                              store: FakeAdapterStore | None = None, **settings: Any) -> AsyncIterator[Any]:
    """Start a server, yield it, and check and stop it at the end.

    `faults` is the fault script of rank 0, or one script per rank. Each setting goes to RouterConfig if this has a
    field of that name, else to the simulated model.
    """
    config = RouterConfig(**{name: value for name, value in settings.items() if name in ROUTER_SETTING_NAMES})
    model = SimulatedConfig(**{"time_scale": 1.0 if gated else 0.0, "num_blocks": 256}
                            | {name: value for name, value in settings.items() if name not in ROUTER_SETTING_NAMES})
    scripts = (faults, *[""] * (ranks - 1)) if isinstance(faults, str) else faults
    models = [replace(model, faults=script) for script in scripts]
    server = (InProcessHttpWeft if http else InProcessWeft)(folder, config, models, worker, gated=gated)
    if store is not None:
        server.adapter_store = store  # type: ignore[union-attr]
    try:
        await server.start()
    except BaseException:
        await server.kill()
        raise
    try:
        yield server
        server.check_blocks_free()
    finally:
        await server.stop()


def play_scenario(scenario: Callable[[Any], Awaitable[None]], folder: Path, **weft_options: Any) -> None:
    async def run_scenario() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_SECONDS), run_in_process_weft(folder, **weft_options) as server:
            await scenario(server)
        if remaining_tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(remaining_tasks, timeout=2.0)  # for tasks that are about to end

    # The loop that the router runs on.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, flatten_log_tracebacks():
        runner.run(run_scenario())


@contextmanager
def flatten_log_tracebacks() -> Iterator[None]:
    """Replace tracebacks in log records by text.

    pytest keeps log records; tracebacks in them would keep channels and servers from being closed.
    """
    loggers = [logging.getLogger(name) for name in ("router.engine.engine", "shard.rpc.message_ordering")]
    for logger in loggers:
        logger.addFilter(flatten_log_record)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(flatten_log_record)


def flatten_log_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = record.getMessage(), None
    if record.exc_info:
        record.msg += f": {record.exc_info[1]!r}"
        record.exc_info = None
    return True
