"""Facts about the model and the shards, which all packages of the router share."""

from dataclasses import dataclass

from router.request import RequestKind


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """One step timed by a shard: its load and its seconds."""

    rows: int
    chunk_tokens: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about the model and the shards, as the shards report them. The router takes them from nowhere else."""

    model: str
    device: str
    dtype: str
    vocabulary_size: int
    max_positions: int
    block_size: int
    num_blocks: int
    tokens_per_step: int = 1  # most per sequence; above 1 with --speculate, and in the simulator
    mixed_steps: bool = True
    world_size: int = 1
    exact: bool = False  # whether results are identical to the last bit whatever else is in the batch
    measurements: tuple[StepMeasurement, ...] = ()
    cache_bytes: int = 0  # on all ranks together
    cache_size_note: str = ""  # explanation of the cache's size, for users
    grammars: bool = False  # whether every shard supports them
    adapters: bool = False
    adapter_bytes: int = 0  # memory for adapters on each shard
    generation: bool = True
    embeddings: bool = False
    classification: bool = False
    labels: tuple[str, ...] = ()  # names by index
    quantization: str = ""  # of the weights, for users; empty: none

    @property
    def supported_kinds(self) -> tuple[RequestKind, ...]:
        is_supported = {RequestKind.GENERATE: self.generation, RequestKind.EMBED: self.embeddings,
                        RequestKind.CLASSIFY: self.classification}
        return tuple(kind for kind, supported in is_supported.items() if supported)
