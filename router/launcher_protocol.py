"""A router process and its parent: the start parameters, signals and two pipes. The router writes lines to `ready_fd`:
`ready PORT JSON` (the JSON describes the model for the banner) or `failed WHY`, and at any time `broken WHY` when the
shards should be replaced. End of file on `parent_fd` means that the parent has ended."""

import asyncio
import json
import os
import select
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.config import RouterConfig
from shard.telemetry.logs import LogSettings
from shard.telemetry.span_export_interface import TraceSettings

HEARTBEAT_SECONDS = 2.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class RouterProcessArgs:
    """Start parameters of a router process; the JSON has the same names. Other users can read them, so secrets are
    environment variables: WEFT_API_KEY, the key that clients must send, and WEFT_HUB_TOKEN, our token for the Hub."""

    config: RouterConfig
    shards: tuple[str, ...]  # their addresses, by rank, of shards on other hosts the files (shards/rank_address.py)
    model: str = ""  # its name, as the user gave it
    notice: str = ""  # note about the model, for users
    folder: str = ""  # folder of the model's files; empty: the simulated model
    listen_fd: int = -1  # bound socket that the process has inherited; -1 if it has none, here and below
    ready_fd: int = -1  # pipe to the parent
    parent_fd: int = -1  # pipe from the parent
    store: tuple[str, ...] = ()  # command of the adapter store's process; empty: adapters are not served
    record_folder: str = ""  # folder of the recordings; empty: nothing is recorded
    progress: tuple[str, ...] = ()  # files into which the shards write their startup progress
    logs: LogSettings = field(default_factory=LogSettings)
    traces: TraceSettings = field(default_factory=TraceSettings)
    settings: tuple[Mapping[str, Any], ...] = ()  # all settings of the server with their sources, to be shown
    shard_credentials: str = ""  # folder of certificate, key and secret for shards on other hosts; empty: none
    hub_token: str = field(default="", repr=False)  # for the adapters named in the server's settings

    @classmethod
    def from_json(cls, text: str, api_key: str = "", hub_token: str = "") -> "RouterProcessArgs":
        parsed: dict[str, Any] = json.loads(text, object_hook=lambda fields: {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
        config = RouterConfig(**{"api_key": api_key} | parsed["config"])
        logs, traces = LogSettings(**parsed.get("logs", {})), TraceSettings(**parsed.get("traces", {}))
        return cls(**parsed | {"config": config, "logs": logs, "traces": traces, "hub_token": hub_token})


def cancel_on_parent_exit(parent_fd: int) -> None:
    """Cancel the running task when the parent ends: no other process would restart or stop this one."""
    if parent_fd < 0:
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def on_parent_exit() -> None:
        loop.remove_reader(parent_fd)
        task.cancel()

    loop.add_reader(parent_fd, on_parent_exit)


class StopSignals:
    """Events set by SIGINT and SIGTERM: the first signal requests a stop, the second the end of unfinished requests. A
    third ends the process at once, by the default action."""

    def __init__(self) -> None:
        """Handle the signals of this process in the running loop from now on."""
        self.stop_requested, self.end_requested = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            self._loop.add_signal_handler(number, self._handle_signal)

    def _handle_signal(self) -> None:
        if not self.stop_requested.is_set():
            self.stop_requested.set()
            return
        self.end_requested.set()
        for number in STOP_SIGNALS:
            self._loop.remove_signal_handler(number)


def send_to_parent(ready_fd: int, message: str) -> None:
    if ready_fd >= 0:
        os.write(ready_fd, f"{' '.join(message.split())}\n".encode())


async def send_heartbeats(ready_fd: int) -> None:
    """Tell the parent every HEARTBEAT_SECONDS that the event loop runs, unless the parent does not read."""
    while ready_fd >= 0:
        if select.select([], [ready_fd], [], 0)[1]:
            os.write(ready_fd, b"alive\n")
        await asyncio.sleep(HEARTBEAT_SECONDS)
