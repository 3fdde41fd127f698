"""Child processes of a server, as plain data. Nothing is started or opened here."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from launcher.hub.resolve import Model
from router.config import API_KEY, HUB_TOKEN, RouterConfig
from shard.config import ShardConfig
from shard.telemetry.logs import Logs
from shard.telemetry.traces import Traces

AS_EVER = Logs()
UNTRACED = Traces()


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    program: tuple[str, ...]
    settings: dict[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)  # in addition to the inherited variables

    def command(self, **inherited: int) -> tuple[str, ...]:
        """Return the command line; `inherited` are file descriptors, passed as settings of these names."""
        return (*self.program, json.dumps(self.settings | inherited))


@dataclass(frozen=True, slots=True)
class AdapterStore:
    """Settings of the adapter store's process, which the router starts when an adapter is first requested."""

    store: str  # the folder
    root: str  # root folder of the source `local`, or ""
    most_bytes: int
    endpoint: str
    client: str
    offline: str
    hub_cache: str
    token: str = field(default="", repr=False)

    @property
    def command(self) -> tuple[str, ...]:
        settings = asdict(self)
        del settings["token"]
        return (*python_module("launcher.adapters.server"), json.dumps(settings))


@dataclass(frozen=True, slots=True)
class Plan:
    shards: tuple[Child, ...]
    router: Child
    folder: str  # temporary folder of this server

    def generation(self, number: int) -> tuple[Child, ...]:
        """Return the shards of start `number`, with a rendezvous file that no earlier start has used."""
        meeting_point = f"{self.folder}/meeting-{number}"
        return tuple(replace(child, settings=child.settings | {"meeting_point": meeting_point})
                     for child in self.shards)


def python_module(name: str) -> tuple[str, ...]:
    """Return the command that runs a module.

    -P keeps the user's current folder out of the child's imports: it may hold a `router` or a `shard.py` as well.
    """
    return (sys.executable, "-P", "-m", name)


def make_plan(router: RouterConfig, shard: ShardConfig, num_shard: int, folder: str, model: Model, *,
              environment: Mapping[str, str], record_folder: str = "", adapters: AdapterStore | None = None,
              logs: Logs = AS_EVER, traces: Traces = UNTRACED) -> Plan:
    """Return the plan of a server: one shard per rank, and the router that drives them.

    Each shard has a socket in `folder`, and `environment` in addition to the inherited variables. The router writes
    recordings to `record_folder`.
    """
    config = asdict(router)
    # Secrets are passed as variables, since other users can read the arguments of a process. gRPC's fork support is off
    # because it would log warnings when the router starts other programs.
    variables = {"GRPC_ENABLE_FORK_SUPPORT": "0", API_KEY: config.pop("api_key"),
                 **({HUB_TOKEN: adapters.token} if adapters else {})}
    shards = [replace(shard, rank=rank, world_size=num_shard, socket=f"unix:{folder}/shard-{rank}.sock",
                      model=model.folder, adaptable=adapters is not None, progress=f"{folder}/progress-{rank}",
                      logs=logs, traces=traces)
              for rank in range(num_shard)]
    return Plan(
        shards=tuple(Child(f"shard {item.rank}", python_module("shard.rpc.server"), asdict(item), environment)
                     for item in shards),
        router=Child("router", python_module("router"),
                     {"config": config, "shards": [item.socket for item in shards], "model": model.name,
                      "notice": model.notice, "folder": model.folder, "record_folder": record_folder,
                      "store": adapters.command if adapters else (),
                      "progress": [item.progress for item in shards], "logs": asdict(logs),
                      "traces": asdict(traces)}, variables),
        folder=folder)
