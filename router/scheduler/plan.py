"""Messages between the scheduler and the shards, as plain data.

The nouns are those of proto/shard.proto, in rows instead of columns. `shards/encode.py` and `shards/decode.py`
convert between the two.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from router.request import Request, RequestKind, Resource


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
    tokens_per_step: int = 1
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

    @property
    def supported_kinds(self) -> tuple[RequestKind, ...]:
        """Kinds of output that the model can produce."""
        is_supported = {RequestKind.GENERATE: self.generation, RequestKind.EMBED: self.embeddings,
                        RequestKind.CLASSIFY: self.classification}
        return tuple(kind for kind, supported in is_supported.items() if supported)


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence as it enters a batch, with everything that a shard needs to run it."""

    sequence_id: int
    request: Request
    generated: tuple[int, ...]
    blocks: tuple[int, ...]
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class PromptChunk:
    sequence_id: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockGrant:
    sequence_id: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    batch: int
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prefill:
    batch: int
    new_sequences: tuple[NewSequence, ...]
    chunks: tuple[PromptChunk, ...]
    includes_decodes: bool
    grants: tuple[BlockGrant, ...] = ()
    keep: tuple[int, ...] | None = None  # a Filter of the batch, sent with the step


@dataclass(frozen=True, slots=True)
class Decode:
    batch: int
    grants: tuple[BlockGrant, ...] = ()
    keep: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PoolingStep:
    """A pooling step: whole texts that enter no batch and leave no state on the shards."""

    kind: RequestKind
    new_sequences: tuple[NewSequence, ...]


ShardMessage = Filter | Concat | Prefill | Decode | PoolingStep


@dataclass(frozen=True, slots=True)
class LoadResource:
    """Order to load a resource on every rank, outside the sequence of steps."""

    resource: Resource


@dataclass(frozen=True, slots=True)
class UnloadResource:
    """Order to unload a resource from every rank, outside the sequence of steps."""

    resource: Resource


ResourceCommand = LoadResource | UnloadResource


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The messages of one step, in order. The last has the number `last_message_number`, the others the numbers just
    below it."""

    epoch: int
    last_message_number: int
    messages: tuple[ShardMessage, ...]
    # Sequences in the step (any may fail), those that must return tokens unless they fail, and the predicted seconds.
    members: tuple[int, ...]
    members_with_output: tuple[int, ...]
    predicted_seconds: float


@dataclass(slots=True)
class StepResultRow:
    tokens: Rows[int]
    logprobs: Rows[float]
    top_logprobs: Rows[Rows[tuple[int, float]]] = ()  # per token, best first; empty when none were asked for


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    sequence_id: int
    start: int  # index of the prompt token that the first value belongs to
    logprobs: Rows[float]


@dataclass(frozen=True, slots=True)
class TokenLabels:
    """Token classification of one text: for each token the index of its most probable label and the probability."""

    label_ids: Rows[int]
    scores: Rows[float]


EmbeddingVector = Rows[float]
PoolingOutput = EmbeddingVector | TokenLabels


@dataclass(slots=True)
class StepResult:
    """The answer to the last message of a plan; without rows when that was a Filter or a Concat."""

    epoch: int
    seconds: float
    rows: dict[int, StepResultRow]
    failures: dict[int, str]
    prompt_logprobs: Rows[PromptLogprobs] = ()
    pooling_outputs: Mapping[int, PoolingOutput] = field(default_factory=dict)  # results of a pooling step, by sequence
