"""Settings of a shard: default, bounds, help. Flags, environment names and docs/reference/settings.md are made from
them.

A shard is started with all its settings as one JSON object.
"""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from shard.fault_script import FaultScript
from shard.telemetry.logs import LogSettings
from shard.telemetry.span_export_interface import TraceSettings


def setting(default: Any, help_text: str, *, low: float | None = None, high: float | None = None,
            choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help_text, "low": low, "high": high, "choices": choices})


DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
QUANTIZATIONS = ("", "int8", "int4")
CPU_ISA_CHOICES = ("auto", "none", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx")
ATTENTION_CHOICES = ("auto", "reference", "cpu", "native", "triton")
DIST_BACKENDS = ("auto", "memory", "gloo", "nccl")


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """Settings of a simulated model: its size, its speed, and its scripted faults."""

    vocabulary_size: int = setting(512, "Size of the vocabulary. 256 bytes and the end token are used.", low=257)
    max_positions: int = setting(16384, "Maximum number of tokens in a sequence.", low=2)
    num_blocks: int = setting(4096, "Maximum number of cache blocks.", low=1)
    tokens_per_step: int = setting(1, "Maximum number of tokens that a step generates for a sequence.", low=1)
    mixed_steps: bool = setting(True, "Allow prompts and decodes in the same step.")
    adapters: bool = setting(True, "Allow adapters.")
    adapter_bytes: int = setting(2**30, "Memory for adapters in bytes.", low=0)
    grammars: bool = setting(True, "Allow grammars.")
    generation: bool = setting(True, "Allow generation.")
    embedding_width: int = setting(16, "Number of values in an embedding. 0: no embeddings.", low=0)
    num_labels: int = setting(0, "Number of labels of a token. 0: no labels.", low=0)
    seconds_per_step: float = setting(0.02, "Seconds that every step takes.", low=0)
    seconds_per_row: float = setting(0.0002, "Further seconds for each sequence in a step.", low=0)
    seconds_per_chunk_token: float = setting(0.00005, "Further seconds for each prompt token in a step.", low=0)
    seconds_per_place: float = setting(1e-7, "Further seconds for each cached token that a step reads.", low=0)
    mean_output_length: float = setting(
        0.0, "Mean number of tokens after which a sequence ends by itself. 0: never.", low=0)
    seed: int = setting(0, "Seed of the made-up words.", low=0)
    time_scale: float = setting(1.0, "Factor of the time that is really waited. 0: no waiting.", low=0)
    faults: str = setting("", "Faults to inject, such as `die@decode:5;slow@prefill:2:0.5;poison@7`.")

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
        10.0, "Seconds that a message which arrived too early waits for the missing one before that counts as lost.",
        low=0)
    router_grace: float = setting(60.0, "Seconds after which a shard ends when its router is gone.", low=0)
    ready_fd: int = setting(
        -1, "Descriptor that gets lines `progress PHASE DONE TOTAL`, and `ready` once the shard listens; -1: none.")
    parent_fd: int = setting(-1, "Descriptor whose end-of-file says that the parent is gone; -1: none.")
    step_log: str = setting("", "File that gets begin and end of every step, for benchmarks; empty: none.")
    progress: str = setting("", "File that tells how far the start has come; empty: none.")
    model: str = setting("", "Folder of the model; empty: a simulated one.")
    memory: str = setting("", "File that remembers what was found out about this machine; empty: none.")
    meeting_point: str = setting(
        "", "Where several shards meet, new for every start of them: a file, or on several hosts HOST:PORT/NAME.")
    host_address: str = setting("", "Address of this host for the other hosts' shards; empty: there are no others.")
    credentials: str = setting("", "Folder of certificate, key and secret, for other hosts; empty: none.")
    local_rank: int = setting(-1, "Which of this machine's shards this is; -1: all are on this machine.", low=-1)
    local_world_size: int = setting(0, "How many shards are on this machine; 0: all.", low=0)
    model_label: str = setting("", "Model that the shard reports, the same on all hosts; empty: its folder.")
    dtype: str = setting(
        "auto", "Number type of weights and computation. auto: on CUDA that of the checkpoint; on CPU float32 for a "
        "float32 checkpoint, else bfloat16 or float32, whichever a short measurement finds faster.", choices=DTYPES)
    quantize: str = setting(
        "", "Quantize the weights while loading: int8, or int4 on a CPU; quantized checkpoints need no flag. int8: a "
        "byte per weight, with a scale per output. int4: half a byte, with a scale for each 64 inputs. The embedding "
        "and, without compiled kernels, the head stay as they are. AWQ, GPTQ, fp8 and compressed-tensors load.",
        choices=QUANTIZATIONS)
    adaptable: bool = setting(False, "Whether adapters can be loaded.")
    embedding_dim: int = setting(
        0, "Number of values in an embedding: the first ones of the model's, for models trained so. 0: all.", low=0)
    device: str = setting("auto", "Device of the model. auto: GPUs if there are any.", choices=DEVICES)
    threads: int = setting(
        0, "Threads of each shard on CPU. 0: the cores divided among the shards, less one for the router on machines "
        "with more than four.", low=0)
    speculate: int = setting(
        0, "Maximum number of tokens that a step guesses for a request, from where its last tokens occurred before in "
        "prompt or answer, and verifies together. Answers are the same; those that copy or repeat take fewer steps. "
        "CPU only. 0: none.", low=0, high=16)
    attention: str = setting(
        "auto", "Implementation of attention. auto: native or else cpu on CPU, triton on CUDA. native: compiled "
        "kernels. cpu: torch's own. reference: simple and slow.",
        choices=ATTENTION_CHOICES)
    cpu_isa: str = setting(
        "auto", "Instruction set of the compiled kernels on CPU. auto: the best of this processor. none: compute with "
        "torch alone.", choices=CPU_ISA_CHOICES)
    cuda_graphs: bool = setting(True, "Replay decode steps as CUDA graphs if the whole model is on one GPU.")
    exact: bool = setting(
        False, "Start only if an answer has the same bits whatever else is served at the same time. On CUDA this "
        "makes matrix products slower; on CPU they are always exact.")
    dist_backend: str = setting(
        "auto", "How shards exchange partial results. memory: through shared memory. gloo: over TCP. auto: nccl "
        "if every shard has a GPU of its own, else memory, or gloo on several hosts.", choices=DIST_BACKENDS)
    memory_fraction: float | None = setting(
        None, "Share of memory for the KV cache. On CUDA: of the whole GPU, weights and workspace included, default "
        "0.9. On CPU: of what is available after loading the model, for all shards together, default 0.5.",
        low=0.01, high=1)
    adapter_memory_fraction: float = setting(
        0.1, "Share of memory for adapters. On CUDA: of the whole GPU. On CPU: of what is available after loading "
        "the model, for all shards together.", low=0.001, high=0.9)
    simulated: SimulatedConfig = field(default_factory=SimulatedConfig)
    logs: LogSettings = field(default_factory=LogSettings)
    traces: TraceSettings = field(default_factory=TraceSettings)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be below world_size ({self.world_size}), got {self.rank}")

    @property
    def machine_rank(self) -> int:
        """Number of this shard among those of its machine."""
        return self.rank if self.local_rank < 0 else self.local_rank

    @property
    def machine_world_size(self) -> int:
        """Number of shards on this machine."""
        return self.local_world_size or self.world_size

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
