"""Entry point of the router process, `python -P -m router JSON`: builds all parts, serves, and shuts down.

`process.py` documents the JSON, `parent.py` the messages to the parent process. Secrets are environment variables,
since other users can read the arguments of a process: WEFT_API_KEY is the key that clients must send, WEFT_HUB_TOKEN
the server's own token for the Hub.
"""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from router.adapters.registry import Adapters
from router.adapters.store_client import Store
from router.config import API_KEY, HUB_TOKEN, RouterConfig
from router.engine.engine import Engine
from router.engine.health import LEAVING
from router.errors import CannotStartNow
from router.http.app import create_app
from router.http.entrance import Entrance
from router.http.transport.generate import About
from router.http.transport.server import Server
from router.parent import asked_to_stop, end_with_parent, tell
from router.process import Order
from router.recording.shelf import Shelf
from router.scheduler.plan import ModelFacts
from router.shards.failures import ShardsLost
from router.shards.shard_group import Shards
from router.startup import Startup
from router.telemetry.adapters import CountedStore
from router.text.chat_template import ChatTemplate, plain_template
from router.text.model_files import read_chat_template, read_tokenizer
from router.text.tokenizer import Tokenizer, byte_tokenizer
from router.validation.validator import Validator
from shard.telemetry.logs import start_logging
from shard.telemetry.traces import Sender, make_sender

MOMENT = 10.0  # seconds that new connections wait unanswered while a restarted router connects to warm shards

log = logging.getLogger(__name__)

TextFiles = tuple[Tokenizer, ChatTemplate | None]


@dataclass(frozen=True, slots=True)
class Running:
    engine: Engine
    entrance: Entrance
    validator: Validator
    server: Server
    shelf: Shelf | None
    sender: Sender | None

    async def drain(self, seconds: float) -> None:
        """Reject new requests and wait at most `seconds` for the unfinished ones."""
        self.engine.health.leave(LEAVING)
        await self.server.close_door()
        await self.entrance.shut_again(self.engine)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.engine.drained(), seconds)

    async def stop(self) -> None:
        await self.engine.stop()
        await self.server.close()
        await self.entrance.close()
        self.validator.close()
        if self.validator.adapters is not None:
            await self.validator.adapters.close()
        if self.shelf is not None:
            await asyncio.to_thread(self.shelf.close)
        if self.sender is not None:
            await asyncio.to_thread(self.sender.close)


async def start(order: Order) -> Running:
    entrance = Entrance.of(order.config, order.listen_fd)
    try:
        files = text_files(order.folder, order.config.tokenizer_config_path)
        shards = Shards(order.shards, order.config.shard_transport)
        shelf = Shelf(Path(order.record_folder), order.config) if order.record_folder else None
        engine = Engine(order.config, shards, files[0], lambda why: tell(order.ready_fd, f"broken {why}"), shelf)
        await start_engine(engine, entrance, Startup(order.progress))
        running = await let_in(order, engine, entrance, files, shelf)
    except BaseException:
        await entrance.close()
        raise
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGUSR1, lambda: engine.write_recording("asked for by SIGUSR1"))
    return running


def text_files(folder: str, tokenizer_config: str = "") -> TextFiles:
    """Read the tokenizer and the chat template; without a folder, return those of the simulated model.

    Called before anything else is started, so that invalid files are reported at once.
    """
    if not folder:
        return byte_tokenizer(), plain_template()
    return read_tokenizer(Path(folder)), read_chat_template(Path(folder), tokenizer_config)


async def start_engine(engine: Engine, entrance: Entrance, startup: Startup) -> None:
    """Start the engine while clients wait.

    If the shards are warm from an earlier router, the start is short and new connections wait for up to MOMENT seconds.
    Otherwise, and after that time, probes report the startup progress and all other requests are rejected.
    """
    starting = asyncio.create_task(engine.start())
    try:
        if startup.is_warm():
            await asyncio.wait([starting], timeout=MOMENT)
        if not starting.done():
            await entrance.shut(engine, startup.told)
        await starting
    finally:
        starting.cancel()
        await asyncio.wait([starting])


async def let_in(
        order: Order, engine: Engine, entrance: Entrance, files: TextFiles, shelf: Shelf | None) -> Running:
    adapters = None
    try:
        sender = make_sender(order.traces, "router", log.warning)
        if order.store and may_adapt(order.config, engine.facts):
            store = counted(Store(order.store, order.hub_token), engine)
            adapters = Adapters(order.config, store, engine.supply.resources, order.model)
            await adapters.preload(engine.supply.resources.keep)
        validator = Validator(order.config, engine.facts, *files, engine.supply.resources.of, adapters=adapters)
    except (ValueError, ShardsLost):
        if adapters is not None:
            await adapters.close()
        await engine.stop()
        raise
    about = About(order.model, order.notice)
    server = Server(create_app(engine, validator, order.config, entrance.keys, about, sender=sender))
    running = Running(engine, entrance, validator, server, shelf, sender)
    try:
        port = await server.open(entrance.listener)
    except OSError:
        await running.stop()
        raise
    await entrance.door.open()
    tell(order.ready_fd, f"ready {port} {json.dumps(served(engine.facts))}")
    return running


def may_adapt(config: RouterConfig, facts: ModelFacts) -> bool:
    """Return whether the model takes adapters. Raises ValueError if it does not and the settings name some to load."""
    if not facts.adapters and (config.adapter_id or config.preloaded_adapter_ids):
        raise ValueError("this model takes no adapters; leave out --adapter-id and --preloaded-adapter-ids")
    if not facts.adapters:
        log.warning("this model takes no adapters; requests that name one are refused")
    return facts.adapters


def counted(store: Store, engine: Engine) -> Store | CountedStore:
    """Return a store whose fetches are counted, or the store itself if the engine has no adapter metrics."""
    tally = engine.tally.adapters
    return store if tally is None else CountedStore(store, tally)


def served(facts: ModelFacts) -> dict[str, Any]:
    """Return the facts about the loaded model that the parent shows to the user."""
    told = {"device": facts.device, "dtype": facts.dtype, "tokens": facts.num_blocks * facts.block_size,
            "bytes": facts.cache_bytes, "why": facts.why}
    return told if facts.generation else told | {"instead_of_text": facts.wishes[0]}


async def serve(order: Order) -> int:
    """Run the router until it is asked to stop or fails; return the exit code."""
    end_with_parent(order.parent_fd)
    try:
        running = await start(order)
    except (OSError, ValueError, ShardsLost) as error:
        tell(order.ready_fd, f"failed {error.told if isinstance(error, ShardsLost) else error}")
        return exit_code(error)
    calm_collector()
    try:
        if await came_first(running.engine.crashed(), asked_to_stop()):
            return 1
        await running.drain(order.config.shutdown_timeout)
    finally:
        await running.stop()
    return 0


def exit_code(error: OSError | ValueError | ShardsLost) -> int:
    """Return 2 if every start would fail alike until a setting, the model or the machine changes, else 1."""
    if isinstance(error, ShardsLost):
        return 2 if error.refused else 1
    return 1 if isinstance(error, OSError | CannotStartNow) and not isinstance(error, PermissionError) else 2


async def came_first(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> bool:
    """Wait until either coroutine ends and cancel the other; return whether `first` has ended."""
    tasks = [asyncio.create_task(first), asyncio.create_task(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def calm_collector() -> None:
    """Make garbage collection rare and cheap: exempt all present objects, which live as long as the process.

    Objects created per token are freed by reference counting, so the collection of cycles may wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def main() -> None:
    order = Order.from_json(sys.argv[1], os.environ.get(API_KEY, ""), os.environ.pop(HUB_TOKEN, ""))
    start_logging("router", order.logs)
    with suppress(asyncio.CancelledError):
        raise SystemExit(uvloop.run(serve(order)))


if __name__ == "__main__":
    main()
