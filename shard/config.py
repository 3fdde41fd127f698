"""Settings of a shard: default, bounds, help. Flags, environment names and docs/configuration.md are made from them.

A shard is started with all its settings as one JSON object.
"""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from shard.fault_script import FaultScript
from shard.telemetry.logs import LogSettings
from shard.telemetry.tracing import TraceSettings


def setting(default: Any, help_text: str, *, low: float | None = None, high: float | None = None,
            choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help_text, "low": low, "high": high, "choices": choices})


DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
QUANTIZATIONS = ("", "int8")
ATTENTION_CHOICES = ("auto", "reference", "cpu", "triton")
DIST_BACKENDS = ("auto", "memory", "nccl")


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """Settings of a simulated model: its size, its speed, and its scripted faults."""

    vocabulary_size: int = setting(512, "Width of the logits; 256 bytes and the end token are used.", low=257)
    max_positions: int = setting(16384, "The most tokens, prompt and generated, in one sequence.", low=2)
    num_blocks: int = setting(4096, "The most cache blocks that fit.", low=1)
    tokens_per_step: int = setting(1, "The most tokens that a step yields for one sequence.", low=1)
    mixed_steps: bool = setting(True, "Whether prompts may run in the same step as decodes.")
    adapters: bool = setting(True, "Whether adapters can be loaded.")
    adapter_bytes: int = setting(2**30, "Room for adapters.", low=0)
    grammars: bool = setting(True, "Whether grammars can be loaded.")
    generation: bool = setting(True, "Whether prompts can be run and continued.")
    embedding_width: int = setting(16, "Values of an embedding; 0: none can be asked for.", low=0)
    num_labels: int = setting(0, "Labels that a token may get; 0: none can be asked for.", low=0)
    seconds_per_step: float = setting(0.02, "Time of a step, whatever it holds.", low=0)
    seconds_per_row: float = setting(0.0002, "Time for every sequence in a step.", low=0)
    seconds_per_chunk_token: float = setting(0.00005, "Time for every prompt token that a step runs.", low=0)
    seconds_per_place: float = setting(1e-7, "Time for every cache place that a step reads.", low=0)
    mean_output_length: float = setting(
        0.0, "Mean number of tokens until a sequence ends by itself; 0: it never does.", low=0)
    seed: int = setting(0, "Another seed, other answers.", low=0)
    time_scale: float = setting(1.0, "How much of a step's time is slept; 0: none.", low=0)
    faults: str = setting("", "What goes wrong, such as `die@decode:5;slow@prefill:2:0.5;poison@7`.")

    def __post_init__(self) -> None:
        check_settings(self)
        FaultScript(self.faults)


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """Settings of one shard."""

    socket: str = setting("", "Address to listen on, such as unix:/path/shard.sock.")
    rank: int = setting(0, "Which of the model's shards this is.", low=0)
    world_size: int = setting(1, "How many shards share the model.", low=1)
    gap_timeout: float = setting(
        10.0, "Seconds that an early message is held back before the missing one counts as lost.", low=0)
    router_grace: float = setting(60.0, "Seconds that a shard outlives the router that it once had.", low=0)
    ready_fd: int = setting(
        -1, "Descriptor that gets lines `progress PHASE DONE TOTAL`, and `ready` once the shard listens; -1: none.")
    parent_fd: int = setting(-1, "Descriptor whose end-of-file says that the parent is gone; -1: none.")
    step_log: str = setting("", "File that gets begin and end of every step, for benchmarks; empty: none.")
    progress: str = setting("", "File that tells how far the start has come; empty: none.")
    model: str = setting("", "Folder of the model; empty: a simulated one.")
    memory: str = setting("", "File that remembers what was found out about this machine; empty: none.")
    meeting_point: str = setting("", "File, new for every start of the shards, at which several of them meet.")
    dtype: str = setting(
        "auto", "Number type of weights and arithmetic. auto: on CUDA as in the checkpoint; on CPU float32 for a "
        "float32 checkpoint, else the faster one of bfloat16 and float32, found by a short measurement.",
        choices=DTYPES)
    quantize: str = setting(
        "", "What weights become while they are loaded, except embedding and head. int8: a byte each, with a scale for "
        "each output; activations stay as they are. Empty: nothing. Checkpoints that are quantised need no setting.",
        choices=QUANTIZATIONS)
    adaptable: bool = setting(False, "Whether adapters can be loaded.")
    embedding_dim: int = setting(
        0, "How many values an embedding has: the first ones of the model's, which must have learnt to put the most "
        "into them. 0: all.", low=0)
    device: str = setting("auto", "Where the model runs. auto: on GPUs if there are any.", choices=DEVICES)
    threads: int = setting(
        0, "Threads that each shard computes with on CPU. 0: the cores shared by the shards, less one for the router "
        "on machines with more than four.", low=0)
    attention: str = setting(
        "auto", "Implementation of attention. auto: cpu on CPU, triton on CUDA; reference: plain and slow.",
        choices=ATTENTION_CHOICES)
    cuda_graphs: bool = setting(
        True, "Whether steps in which nobody starts are replayed as CUDA graphs, where the whole model is on one GPU.")
    exact: bool = setting(
        False, "Whether shards start only where an answer has the same bits whatever else is served at the same time. "
        "On CUDA products are then computed in a way that allows it, and takes longer; on CPU they always are.")
    dist_backend: str = setting(
        "auto", "How shards exchange partial results. memory: by memory that all of them see. auto: nccl if every "
        "shard has a GPU of its own, memory otherwise.",
        choices=DIST_BACKENDS)
    memory_fraction: float | None = setting(
        None, "Share of the memory for the cache. On CUDA of the whole GPU, weights and work space included, by "
        "default 0.9; on CPU of what is available once the model is loaded, for all shards together, by default 0.5.",
        low=0.01, high=1)
    adapter_memory_fraction: float = setting(
        0.1, "Share of the memory for adapters, where they are served: on CUDA of the whole GPU, on CPU of what is "
        "available once the model is loaded, for all shards together.", low=0.001, high=0.9)
    simulated: SimulatedConfig = field(default_factory=SimulatedConfig)
    logs: LogSettings = field(default_factory=LogSettings)
    traces: TraceSettings = field(default_factory=TraceSettings)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be below world_size ({self.world_size}), got {self.rank}")

    @classmethod
    def from_json(cls, json_text: str) -> "ShardConfig":
        values = json.loads(json_text)
        nested_types = {"simulated": SimulatedConfig, "logs": LogSettings, "traces": TraceSettings}
        nested = {name: kind(**values.get(name, {})) for name, kind in nested_types.items()}
        return cls(**{**values, **nested})


def check_settings(config: Any) -> None:
    for config_field in fields(config):
        value, bounds = getattr(config, config_field.name), config_field.metadata
        if value is None or not bounds:
            continue
        if bounds["choices"] and value not in bounds["choices"]:
            raise ValueError(f"{config_field.name} must be one of {', '.join(bounds['choices'])}, got {value}")
        if bounds["low"] is not None and not value >= bounds["low"]:
            raise ValueError(f"{config_field.name} must be at least {bounds['low']}, got {value}")
        if bounds["high"] is not None and not value <= bounds["high"]:
            raise ValueError(f"{config_field.name} must be at most {bounds['high']}, got {value}")
