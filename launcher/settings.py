"""All settings of a server as one list, made from the fields of the config dataclasses, with flags and variables.

The command line and the configuration page are both generated from this list.
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, get_type_hints

from launcher.hub.resolve import DEMO_MODEL
from router.config import RouterConfig, check_settings, setting
from shard.config import ShardConfig, SimulatedConfig
from shard.telemetry.logs import LOG_LEVELS, LogSettings
from shard.telemetry.span_export_interface import TraceSettings

# Flags of text-generation-inference that mean the same here: their variables work under TGI's names too.
TGI_COMPATIBLE_SETTINGS = frozenset({
    "hostname", "port", "num_shard", "max_concurrent_requests", "max_best_of", "max_stop_sequences", "max_top_n_tokens",
    "max_client_batch_size", "max_input_tokens", "max_total_tokens", "max_batch_prefill_tokens",
    "max_batch_total_tokens", "max_batch_size", "disable_grammar_support",
    "api_key", "waiting_served_ratio", "max_waiting_tokens", "payload_limit", "validation_workers",
    "model_id", "revision", "dtype", "json_output", "cors_allow_origin", "tokenizer_config_path", "otlp_endpoint",
    "otlp_service_name"})
RESERVED_VARIABLES = frozenset({
    "HOSTNAME",   # shells and containers set it to the name of the machine
    "WEFT_PORT",  # Kubernetes sets it, to a URL, for every pod beside a service called weft
})
POSITIONAL_SETTINGS = ("model_id",)  # may be given without their flag, in this order
# Other spellings: those of vLLM where they mean the same.
FLAG_ALIASES: Mapping[str, tuple[str, ...]] = {
    "adapters": ("--enable-lora",), "hostname": ("--host",),
    "max_batch_prefill_tokens": ("--max-num-batched-tokens",),
    "max_batch_size": ("--max-num-seqs",), "max_total_tokens": ("--max-model-len", "--ctx-size"),
    "model_id": ("--model",), "preloaded_adapter_ids": ("--lora-modules",),
    "num_shard": ("--num-shards", "--tensor-parallel-size"), "port": ("-p",),
    "tokenizer_config_path": ("--chat-template",)}
FIELDS_SET_BY_LAUNCHER = frozenset({"socket", "rank", "world_size", "ready_fd", "parent_fd", "step_log", "simulated",
                                    "model", "meeting_point", "memory", "progress", "logs", "traces", "adaptable",
                                    "host_address", "credentials", "local_rank", "local_world_size", "model_label"})


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Settings of the launcher itself: model, number of shards, adapters, logs and traces."""

    model_id: str = setting(
        DEMO_MODEL, "Model to serve: a folder, or a name at the Hugging Face Hub such as org/name, which is "
        "downloaded if it is not in the cache. weft/demo comes with weft (defaults: --dtype float32 "
        "--max-batch-total-tokens 32768, adapters from --adapter-source local). weft/simulated runs no model and "
        "answers with made-up words.")
    revision: str = setting("main", "Branch, tag or commit of a model at the Hub.")
    num_shard: int = setting(
        1, "Number of shards (tensor parallelism). Each is a process with a part of the model. With --nnodes: of all "
        "nodes together, by default one each.", low=1, high=64)
    nnodes: int = setting(
        0, "Number of nodes (hosts) that share the shards of one model. 1: this one alone. 0: as variables of torchrun "
        "or LeaderWorkerSet say, if --shard-credentials is set.", low=0, high=64)
    node_rank: int = setting(
        0, "Number of this node, from 0. Node 0 has the router and leads the others.", low=0, high=63)
    dist_init_addr: str = setting(
        "", "Address of node 0, where it listens for the other nodes: HOST or HOST:PORT. Without a port: 29500, or "
        "torchrun's, or the next one if torchrun itself listens there.")
    shard_credentials: str = setting(
        "", "Folder with the files tls.crt, tls.key, ca.crt and secret, for all connections between nodes. Needed with "
        "several nodes.")
    adapters: bool = setting(
        False, "Let requests name LoRA adapters. --adapter-root, --adapter-id and --preloaded-adapter-ids switch "
        "this on too. Without adapters, a model is slightly faster.")
    adapter_root: str = setting("", "Folder that contains the adapters of the source `local`.")
    allowed_adapters: tuple[str, ...] = setting(
        (), "Adapters that requests may name: all of a source (hub, local, s3), or those whose name begins so, such as "
        "hub://org or s3://bucket/folder. Can be repeated. Default: hub, local, and the bucket that "
        "PREDIBASE_MODEL_BUCKET names. Adapters set by flags are always allowed.")
    adapter_disk_gb: float = setting(
        20.0, "Disk space for downloaded adapters, in gigabytes. The least recently used are deleted.", low=0)
    json_output: bool = setting(False, "Write logs as JSON, one object per line.")
    log_level: str = setting("info", "Minimum level of the messages in the log.", choices=LOG_LEVELS)
    otlp_endpoint: str = setting(
        "", "OpenTelemetry collector that receives a trace of every request by OTLP over gRPC, such as "
        "http://127.0.0.1:4317. Needs pip install 'weft[otel]'. Empty: no traces.")
    otlp_service_name: str = setting("weft", "Name of this server in traces.")

    def __post_init__(self) -> None:
        check_settings(self)
        TraceSettings(self.otlp_endpoint)  # raises ValueError for an invalid address

    @property
    def logging_settings(self) -> LogSettings:
        return LogSettings(self.log_level, self.json_output)

    @property
    def trace_settings(self) -> TraceSettings:
        return TraceSettings(self.otlp_endpoint, self.otlp_service_name)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as users see it. `name` is the field's name with the prefix of its group."""

    name: str
    type: Any
    field: Field[Any]

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--" + self.name.replace("_", "-"), *FLAG_ALIASES.get(self.name, ()))

    @property
    def environment_variables(self) -> tuple[str, ...]:
        """Environment variables of the setting; the first one that is set is used."""
        names = [f"WEFT_{self.name.upper()}"] + [self.name.upper()] * (self.name in TGI_COMPATIBLE_SETTINGS)
        return tuple(name for name in names if name not in RESERVED_VARIABLES)


def iterate_settings(config_class: Any, prefix: str = "") -> Iterator[Setting]:
    types = get_type_hints(config_class)
    for item in fields(config_class):
        if item.name not in FIELDS_SET_BY_LAUNCHER:
            yield Setting(prefix + item.name, types[item.name], item)


SETTINGS_BY_NAME: Mapping[str, Setting] = {setting.name: setting for settings in (
    iterate_settings(LaunchConfig), iterate_settings(RouterConfig), iterate_settings(ShardConfig),
    iterate_settings(SimulatedConfig, "simulated_")) for setting in settings}
# Names of the settings of each group, in the order of the help page. Those in no group are in OTHER_GROUP.
GROUP_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "Model": ("model_id", "revision", "dtype", "quantize", "device", "num_shard", "threads", "embedding_dim", "exact",
              "served_model_name", "tokenizer_config_path"),
    "Several hosts": ("nnodes", "node_rank", "dist_init_addr", "shard_credentials"),
    "HTTP": ("hostname", "port", "api_key", "api_keys", "cors_allow_origin", "allowed_hosts", "dialect", "compat",
             "payload_limit", "header_timeout", "body_timeout", "keep_alive_timeout", "max_connections",
             "max_connections_per_address", "slow_client_buffer", "slow_client_timeout", "validation_workers",
             "max_handlers", "shutdown_timeout", "shutdown_delay", "ui", "ui_show_text"),
    "Limits": ("max_concurrent_requests", "max_input_tokens", "max_total_tokens", "max_queue_requests",
               "max_queue_tokens", "max_queue_ms", "max_best_of", "max_choices", "max_stop_sequences",
               "max_top_n_tokens", "max_client_batch_size", "disable_grammar_support"),
    "Batching and cache": (
        "max_batch_size", "max_batch_prefill_tokens", "max_batch_total_tokens", "memory_fraction", "cache_scope",
        "block_size", "prefill_policy", "max_decode_stall_ms", "waiting_served_ratio", "max_waiting_tokens",
        "max_passed_over_ms", "look_ahead", "speculate", "batching", "static_window_ms", "static_equal_lengths",
        "recompute"),
    "Adapters": ("adapters", "adapter_source", "adapter_root", "allowed_adapters", "adapter_id",
                 "preloaded_adapter_ids", "preloaded_adapter_source", "max_active_adapters", "adapter_cycle_time_s",
                 "adapter_memory_fraction", "adapter_disk_gb"),
    "Logs, traces, recordings": ("log_level", "json_output", "request_log", "record_minutes", "otlp_endpoint",
                                 "otlp_service_name"),
}
OTHER_GROUP, SIMULATED_GROUP = "Shards and other settings", "Simulated model"
# Settings that the short help page shows.
COMMON_SETTINGS = ("model_id", "dtype", "quantize", "device", "num_shard", "hostname", "port", "api_key", "compat",
                   "max_concurrent_requests", "max_total_tokens", "max_batch_size", "memory_fraction", "adapters",
                   "adapter_root", "adapter_source", "log_level")


def group_settings() -> dict[str, tuple[Setting, ...]]:
    groups = {title: tuple(SETTINGS_BY_NAME[name] for name in names) for title, names in GROUP_MEMBERS.items()}
    rest = [setting for setting in SETTINGS_BY_NAME.values() if not any(setting in group for group in groups.values())]
    simulated = tuple(setting for setting in rest if setting.name.startswith("simulated_"))
    return {**groups, OTHER_GROUP: tuple(setting for setting in rest if setting not in simulated),
            SIMULATED_GROUP: simulated}


SETTING_GROUPS: Mapping[str, tuple[Setting, ...]] = group_settings()


def make_configs(values: Mapping[str, Any]) -> tuple[LaunchConfig, RouterConfig, ShardConfig]:
    """Return the configs for the given settings, by name. Raises ValueError for a value out of bounds."""
    def select_fields(config_class: Any, prefix: str = "") -> dict[str, Any]:
        return {item.field.name: values[item.name] for item in iterate_settings(config_class, prefix)
                if item.name in values}

    simulated = SimulatedConfig(**select_fields(SimulatedConfig, "simulated_"))
    return (LaunchConfig(**select_fields(LaunchConfig)), RouterConfig(**select_fields(RouterConfig)),
            ShardConfig(**select_fields(ShardConfig), simulated=simulated))
