"""Entry point of the router process, `python -P -m router JSON`: builds all parts, serves, and shuts down.
`launcher_protocol.py` documents the JSON, the secrets beside it, and the messages to the parent process."""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from router.adapters.registry import AdapterRegistry
from router.adapters.store_client import AdapterStoreClient
from router.config import API_KEY_ENV, HUB_TOKEN_ENV
from router.engine.engine import Engine
from router.errors import SHUTDOWN_REASON, RetryableStartupError
from router.http.server import HttpServer, StandInServer, create_app
from router.http.transport.services import ServedModel
from router.launcher_protocol import (
    RouterProcessArgs,
    StopSignals,
    cancel_on_parent_exit,
    send_heartbeats,
    send_to_parent,
)
from router.model_info import ModelInfo
from router.processes.memory_trimming import trim_freed_memory_periodically
from router.recording.recording_file import RecordingFolder
from router.shards.failures import ShardsLost
from router.shards.shard_group import ShardGroup
from router.shards.startup_progress import ProgressByPhase
from router.text.chat_template import simulated_model_template
from router.text.chat_template_client import IsolatedChatTemplate
from router.text.model_files import load_chat_template, load_tokenizer
from router.text.prompt_encoder import TokenLimits
from router.text.tokenizer import Tokenizer, create_byte_tokenizer
from router.text.transformers_parser import preload_chat_parsing
from router.validation.validator import RequestValidator
from shard.telemetry.logs import start_logging
from shard.telemetry.span_export_interface import SpanSender, make_span_sender
from shard.tls_credentials import load_credentials

# seconds that new connections wait unanswered while a restarted router connects to warm shards
WARM_START_GRACE_SECONDS = 10.0
MAX_WARM_UP_SECONDS = 10.0  # for which a server that is ready otherwise waits
# seconds after which a thread that computes lets the event loop go on; 5 ms by default, at each of the loop's turns
SWITCH_INTERVAL_SECONDS = 0.0005

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouterProcess:
    """All parts of a serving router, with the order in which they are drained and stopped."""

    engine: Engine
    stand_in_server: StandInServer
    validator: RequestValidator
    server: HttpServer
    recording_folder: RecordingFolder | None
    span_sender: SpanSender | None

    async def drain(self, delay: float, seconds: float, end_requested: asyncio.Event) -> None:
        """Become unready, and take requests for `delay` seconds more. Then reject new requests and wait for the
        unfinished ones, at most `seconds`. Both end at once when `end_requested`, the delay also when the engine has
        crashed."""
        self.engine.health.set_unready_permanently(SHUTDOWN_REASON)
        if delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(wait_for_either(self.engine.wait_until_crashed(), end_requested.wait()), delay)
        await self.server.stop_accepting()
        await self.stand_in_server.start_during_shutdown(self.engine)
        with suppress(TimeoutError):
            await asyncio.wait_for(wait_for_either(self.engine.wait_until_drained(), end_requested.wait()), seconds)

    async def stop(self) -> None:
        await self.engine.stop()
        await self.server.close()
        await self.stand_in_server.close()
        self.validator.close()
        if self.validator.adapter_registry is not None:
            await self.validator.adapter_registry.close()
        if self.recording_folder is not None:
            await asyncio.to_thread(self.recording_folder.close)
        if self.span_sender is not None:
            await asyncio.to_thread(self.span_sender.close)


async def start_router(args: RouterProcessArgs) -> RouterProcess:
    stand_in_server = StandInServer.from_config(args.config, args.listen_fd)
    isolated_template: IsolatedChatTemplate | None = None
    try:
        folder = Path(args.folder)
        # Read before anything else is started, so that invalid files are reported at once.
        tokenizer = load_tokenizer(folder) if args.folder else create_byte_tokenizer()
        template = (load_chat_template(folder, args.config.tokenizer_config_path) if args.folder
                    else simulated_model_template())
        if template is not None:
            isolated_template = IsolatedChatTemplate(template, args.config.validation_workers)
        startup_progress = ProgressByPhase(args.progress)
        # While the shards load the model. Connections wait for a restarted router, which therefore does not.
        warm_up = WarmUp(isolated_template, is_awaited=not startup_progress.is_warm())
        shards = ShardGroup(args.shards, args.config.shard_transport, args.config.shard_response_timeout,
                            load_credentials(args.shard_credentials) if args.shard_credentials else None)
        recording_folder = RecordingFolder(Path(args.record_folder), args.config) if args.record_folder else None
        engine = Engine(args.config, shards, tokenizer, lambda why: send_to_parent(args.ready_fd, f"broken {why}"),
                        recording_folder,
                        on_culprit_found=lambda num_deaths: send_to_parent(args.ready_fd, f"excused {num_deaths}"))
        await start_engine(engine, stand_in_server, startup_progress)
        process = await start_server(args, engine, stand_in_server, tokenizer, template=isolated_template,
                                     warm_up=warm_up, recording_folder=recording_folder)
    except BaseException:
        if isolated_template is not None:
            isolated_template.close()
        await stand_in_server.close()
        raise
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGUSR1, lambda: engine.write_recording("asked for by SIGUSR1"))
    return process


class WarmUp:
    """Work in threads that would make the first chats wait: the start of the processes that render chats, and
    imports."""

    def __init__(self, template: IsolatedChatTemplate | None, *, is_awaited: bool) -> None:
        """`is_awaited`: whether the start of the server waits for it, at most MAX_WARM_UP_SECONDS."""
        self._is_awaited = is_awaited
        self._futures: list[asyncio.Future[None]] = []
        if template is not None:
            self.start(template.warm_up)

    def start(self, work: Callable[[], None]) -> None:
        self._futures.append(asyncio.get_running_loop().run_in_executor(None, work))

    async def wait(self) -> None:
        if not self._is_awaited or not self._futures:
            return
        done, pending = await asyncio.wait(self._futures, timeout=MAX_WARM_UP_SECONDS)
        for error in filter(None, (future.exception() for future in done)):
            logger.warning("the first chat may wait, since what it needs failed to start: %r", error)
        if pending:
            logger.warning("the first chat may wait: what it needs did not start within %g seconds",
                           MAX_WARM_UP_SECONDS)


async def start_engine(engine: Engine, stand_in_server: StandInServer, startup_progress: ProgressByPhase) -> None:
    """Start the engine. If the shards are warm from an earlier router, the start is short and new connections wait, for
    up to WARM_START_GRACE_SECONDS. Otherwise, and after that time, probes report the startup progress and all other
    requests are rejected."""
    start_task = asyncio.create_task(engine.start())
    try:
        if startup_progress.is_warm():
            await asyncio.wait([start_task], timeout=WARM_START_GRACE_SECONDS)
        if not start_task.done():
            await stand_in_server.start_during_startup(engine, startup_progress.to_json)
        await start_task
    finally:
        start_task.cancel()
        await asyncio.wait([start_task])


async def start_server(args: RouterProcessArgs, engine: Engine, stand_in_server: StandInServer, tokenizer: Tokenizer,
                       *, template: IsolatedChatTemplate | None, warm_up: "WarmUp",
                       recording_folder: RecordingFolder | None) -> RouterProcess:
    adapters, loader = None, engine.adapter_grammar_controller.loader
    try:
        span_sender = make_span_sender(args.traces, "router", logger.warning)
        adapters = create_adapter_registry(args, engine)
        if adapters is not None:
            await adapters.preload(loader.load_permanently)
        if template is not None:
            template.limit_prompts(
                args.config, TokenLimits.from_config(args.config, engine.model_info).max_input_tokens)
        validator = RequestValidator(args.config, engine.model_info, tokenizer, template,
                                     loader.get_or_register, adapter_registry=adapters)
        if validator.reasoning_format is not None:
            warm_up.start(preload_chat_parsing)
    except (ValueError, ShardsLost):
        if adapters is not None:
            await adapters.close()
        await engine.stop()
        raise
    name, *other_names = args.config.served_model_name or (args.model,)
    server = HttpServer(create_app(engine, validator, args.config, stand_in_server.api_keys,
                                   ServedModel(name, args.notice, tuple(other_names)), span_sender=span_sender,
                                   settings=args.settings),
                        stand_in_server.connections)
    process = RouterProcess(engine, stand_in_server, validator, server, recording_folder, span_sender)
    await warm_up.wait()
    try:
        port = await server.start(stand_in_server.listening_socket)
    except OSError:
        await process.stop()
        raise
    await stand_in_server.stop()
    send_to_parent(args.ready_fd, f"ready {port} {json.dumps(describe_model(engine.model_info))}")
    return process


def create_adapter_registry(args: RouterProcessArgs, engine: Engine) -> AdapterRegistry | None:
    """Return the registry of adapters; None without a store, or if the model takes no adapters. Raises ValueError if
    the settings name some to load nevertheless."""
    if not args.store:
        return None
    if (adapter_metrics := engine.server_metrics.adapters) is None:
        if args.config.adapter_id or args.config.preloaded_adapter_ids:
            raise ValueError("this model takes no adapters; leave out --adapter-id and --preloaded-adapter-ids")
        logger.warning("this model takes no adapters; requests that name one are refused")
        return None
    return AdapterRegistry(args.config, AdapterStoreClient(args.store, args.hub_token),
                           engine.adapter_grammar_controller.loader, args.model,
                           observe_fetch=adapter_metrics.observe_fetch)


def describe_model(model_info: ModelInfo) -> dict[str, Any]:
    """Return the facts about the loaded model that the parent shows to the user."""
    description = {"device": model_info.device, "dtype": model_info.dtype,
                   "tokens": model_info.num_blocks * model_info.block_size, "bytes": model_info.cache_bytes,
                   "why": model_info.cache_size_note}
    return description if model_info.generation else description | {"instead_of_text": model_info.supported_kinds[0]}


async def serve(args: RouterProcessArgs) -> int:
    """Run the router until it is asked to stop or fails; return the exit code."""
    cancel_on_parent_exit(args.parent_fd)
    try:
        process = await start_router(args)
    except (OSError, ValueError, ShardsLost) as error:
        send_to_parent(args.ready_fd, f"failed {error.shard_reason if isinstance(error, ShardsLost) else error}")
        return exit_code(error)
    # Collect cycles rarely: all present objects live as long as the process, those of a token are freed by reference
    # counting.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    signals, tasks = StopSignals(), [asyncio.create_task(send_heartbeats(args.ready_fd)),
                                     asyncio.create_task(process.engine.server_metrics.event_loop_monitor.run()),
                                     asyncio.create_task(trim_freed_memory_periodically())]
    try:
        if await wait_for_either(process.engine.wait_until_crashed(), signals.stop_requested.wait()):
            return 1
        await process.drain(args.config.shutdown_delay, args.config.shutdown_timeout, signals.end_requested)
    finally:
        await process.stop()
        for task in tasks:
            task.cancel()
    return 0


def exit_code(error: OSError | ValueError | ShardsLost) -> int:
    """Return 2 if every start would fail alike until a setting, the model or the machine changes, else 1."""
    if isinstance(error, ShardsLost):
        return 2 if error.is_warmup_rejected else 1
    return 1 if isinstance(error, OSError | RetryableStartupError) and not isinstance(error, PermissionError) else 2


async def wait_for_either(first: Coroutine[Any, Any, object], second: Coroutine[Any, Any, object]) -> bool:
    """Wait until either coroutine ends and cancel the other; return whether `first` has ended."""
    tasks = [asyncio.create_task(first), asyncio.create_task(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def main() -> None:
    args = RouterProcessArgs.from_json(sys.argv[1], os.environ.get(API_KEY_ENV, ""), os.environ.pop(HUB_TOKEN_ENV, ""))
    start_logging("router", args.logs)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    with suppress(asyncio.CancelledError):
        raise SystemExit(uvloop.run(serve(args)))


if __name__ == "__main__":
    main()
