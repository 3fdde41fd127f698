"""Start parameters of a router process: one JSON object, and secrets beside it.

The object holds `config` (the fields of RouterConfig), `shards` (their addresses, by rank), for a real model its name
(`model`) and the folder of its files (`folder`), a note about the model for users (`notice`), the folder for recordings
(`record_folder`), the files into which the shards write their startup progress (`progress`), the command of the adapter
store (`store`), settings of logging (`logs`) and tracing (`traces`), and three file descriptors that the process may
have inherited: `listen_fd`, a bound socket; `ready_fd` and `parent_fd`, the pipes of parent.py.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from router.config import RouterConfig
from shard.telemetry.logs import Logs
from shard.telemetry.traces import Traces


@dataclass(frozen=True, slots=True)
class Order:
    """Start parameters of a router process."""

    config: RouterConfig
    shards: tuple[str, ...]
    model: str = ""  # its name, as the user gave it
    notice: str = ""  # note about the model, for users
    folder: str = ""
    listen_fd: int = -1
    ready_fd: int = -1
    parent_fd: int = -1
    store: tuple[str, ...] = ()  # command of the adapter store's process; empty: adapters are not served
    record_folder: str = ""  # folder of the recordings; empty: nothing is recorded
    progress: tuple[str, ...] = ()  # files into which the shards write their startup progress
    logs: Logs = field(default_factory=Logs)
    traces: Traces = field(default_factory=Traces)
    hub_token: str = field(default="", repr=False)  # for the adapters named in the server's settings

    @classmethod
    def from_json(cls, text: str, api_key: str = "", hub_token: str = "") -> "Order":
        """Parse the JSON. Secrets are not part of it, since other users can read the arguments of a process."""
        given: dict[str, Any] = json.loads(text)
        settings: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                    for name, value in given["config"].items()}
        config = RouterConfig(**{"api_key": api_key, **settings})
        lists = {name: tuple(given.get(name, ())) for name in ("shards", "progress", "store")}
        nested = {"config": config, "logs": Logs(**given.get("logs", {})), "traces": Traces(**given.get("traces", {}))}
        return cls(**given | nested | lists | {"hub_token": hub_token})
