"""Child processes of a server, as plain data. Nothing is started or opened here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from launcher.environment_variables import python_module_command
from launcher.hub.resolve import ResolvedModel
from router.config import API_KEY_ENV, HUB_TOKEN_ENV, RouterConfig
from shard.config import ShardConfig
from shard.telemetry.logs import LogSettings
from shard.telemetry.span_export_interface import TraceSettings

DEFAULT_LOGS = LogSettings()
NO_TRACES = TraceSettings()


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Name, command, settings and environment of a child process that is to be started."""

    name: str
    program_command: tuple[str, ...]
    settings: dict[str, Any]
    extra_environment: Mapping[str, str] = field(default_factory=dict)  # in addition to the inherited variables

    def make_command_line(self, **descriptors: int) -> tuple[str, ...]:
        """Return the command line; `descriptors` are file descriptors, passed as settings of these names."""
        return (*self.program_command, json.dumps(self.settings | descriptors))


@dataclass(frozen=True, slots=True)
class AdapterStoreConfig:
    """Settings of the adapter store's process, which the router starts when an adapter is first requested."""

    store_folder: str  # the folder
    local_root: str  # root folder of the source `local`, or ""
    max_bytes: int
    endpoint: str
    user_agent: str
    offline_variable: str
    hub_cache: str
    allowed_adapters: tuple[str, ...] = ()
    token: str = field(default="", repr=False)

    @property
    def command_line(self) -> tuple[str, ...]:
        settings = asdict(self)
        del settings["token"]
        return (*python_module_command("launcher.adapters.store_process"), json.dumps(settings))


@dataclass(frozen=True, slots=True)
class HostPlacement:
    """Shards of this host among those of several that serve one model."""

    ranks: range  # of this host's shards
    first_local_rank: int  # number of the first of them on its machine
    local_world_size: int  # shards on this machine
    credentials: str  # folder
    meeting_prefix: str  # where the shards of all hosts meet, without the number of their start
    host_address: str = ""  # of this host, as others reach it

    def get_multi_host_settings(self, rank: int) -> dict[str, Any]:
        """Return the settings of a shard of this host that one on a single machine does not have."""
        return {"local_rank": self.first_local_rank + rank - self.ranks.start, "credentials": self.credentials,
                "local_world_size": self.local_world_size, "host_address": self.host_address}


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Specs of all child processes of a server: the shards of this host and the router."""

    shard_specs: tuple[ChildSpec, ...]
    router_spec: ChildSpec
    meeting_prefix: str  # where shards meet, without the number of their start

    def make_shard_specs(self, start_number: int) -> tuple[ChildSpec, ...]:
        """Return the shards of start `start_number`, with a meeting point that no earlier start has used."""
        meeting_point = f"{self.meeting_prefix}{start_number}"
        return tuple(replace(child, settings=child.settings | {"meeting_point": meeting_point})
                     for child in self.shard_specs)


def make_plan(router: RouterConfig, shard: ShardConfig, num_shard: int, runtime_folder: str, model: ResolvedModel, *,
              shard_environment: Mapping[str, str], record_folder: str = "", adapter_store: AdapterStoreConfig
              | None = None, logs: LogSettings = DEFAULT_LOGS, traces: TraceSettings = NO_TRACES,
              described_settings: Sequence[Mapping[str, Any]] = (),
              placement: HostPlacement | None = None) -> LaunchPlan:
    """Return the plan of a server: one shard per rank of this host, by default of all, and the router that drives them.

    Each shard has a socket in `runtime_folder`, and `environment` in addition to the inherited variables. The router
    writes recordings to `record_folder`, and shows `described_settings`.
    """
    config = asdict(router)
    # Secrets are passed as variables, since other users can read the arguments of a process. gRPC's fork support is off
    # because it would log warnings when the router starts other programs.
    variables = {"GRPC_ENABLE_FORK_SUPPORT": "0", API_KEY_ENV: config.pop("api_key"),
                 **({HUB_TOKEN_ENV: adapter_store.token} if adapter_store else {})}
    ranks = range(num_shard) if placement is None else placement.ranks
    shards = [replace(shard, rank=rank, world_size=num_shard, socket=f"unix:{runtime_folder}/shard-{rank}.sock",
                      model=model.folder, adaptable=adapter_store is not None,
                      progress=f"{runtime_folder}/progress-{rank}", logs=logs, traces=traces,
                      **placement.get_multi_host_settings(rank) if placement is not None else {})
              for rank in ranks]
    sockets = {item.rank: item.socket for item in shards}
    return LaunchPlan(
        shard_specs=tuple(ChildSpec(f"shard {item.rank}", python_module_command("shard.rpc.server"), asdict(item),
                                    shard_environment)
                          for item in shards),
        router_spec=ChildSpec("router", python_module_command("router"),
                              {"config": config,
                               "shards": [sockets.get(rank, f"file:{address_file(runtime_folder, rank)}")
                                          for rank in range(num_shard)],
                               "shard_credentials": placement.credentials if placement else "", "model": model.name,
                               "notice": model.notice, "folder": model.folder, "record_folder": record_folder,
                               "store": adapter_store.command_line if adapter_store else (),
                               "progress": [item.progress for item in shards], "logs": asdict(logs),
                               "traces": asdict(traces), "settings": described_settings}, variables),
        meeting_prefix=placement.meeting_prefix if placement else f"{runtime_folder}/meeting-")


def address_file(runtime_folder: str, rank: int) -> str:
    """Return the file that holds the address of a shard on another host while it listens."""
    return f"{runtime_folder}/address-{rank}"
