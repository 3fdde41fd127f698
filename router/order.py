"""What the parent of a router wants of it: one JSON object, and beside it what nobody else should see.

The object holds `config` (the fields of RouterConfig), `shards` (their addresses, by rank), for a real model its name
(`model`) and where its files are (`folder`), where to write recordings (`record_folder`), the files in which the shards
write how far their start has come (`progress`), how to log (`logs`), where traces go (`traces`), and three descriptors
that the process may have inherited: `listen_fd`, a bound socket; `ready_fd` and `parent_fd`, the pipes of parent.py.
Knows nothing of what is done with any of it.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from router.config import RouterConfig
from shard.logs import Logs
from shard.traces import Traces


@dataclass(frozen=True, slots=True)
class Order:
    """What the parent wants."""

    config: RouterConfig
    shards: tuple[str, ...]
    model: str = ""  # its name, as the user gave it
    notice: str = ""  # what users should know of it
    folder: str = ""
    listen_fd: int = -1
    ready_fd: int = -1
    parent_fd: int = -1
    store: tuple[str, ...] = ()  # the command of the process that keeps adapters; none: they are not served
    record_folder: str = ""  # where recordings are written; without one nothing is recorded
    progress: tuple[str, ...] = ()  # the files in which the shards write how far they are
    logs: Logs = field(default_factory=Logs)
    traces: Traces = field(default_factory=Traces)
    hub_token: str = field(default="", repr=False)  # for adapters that whoever runs the server has named

    @classmethod
    def from_json(cls, text: str, api_key: str = "", hub_token: str = "") -> "Order":
        """Secrets come beside: they are no arguments of the process, since others see those."""
        given: dict[str, Any] = json.loads(text)
        settings: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                    for name, value in given["config"].items()}
        config = RouterConfig(**{"api_key": api_key, **settings})
        lists = {name: tuple(given.get(name, ())) for name in ("shards", "progress", "store")}
        nested = {"config": config, "logs": Logs(**given.get("logs", {})), "traces": Traces(**given.get("traces", {}))}
        return cls(**given | nested | lists | {"hub_token": hub_token})
