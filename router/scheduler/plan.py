"""Messages between the scheduler and the shards, as plain data.

The nouns are those of proto/shard.proto, in rows instead of columns. `shards/encode.py` and `shards/decode.py`
convert between the two.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from router.request import Request, Resource, Wish


@dataclass(frozen=True, slots=True)
class Measurement:
    """One step timed by a shard: its load and its seconds."""

    rows: int
    chunk_tokens: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelFacts:
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
    measurements: tuple[Measurement, ...] = ()
    cache_bytes: int = 0  # on all ranks together
    why: str = ""  # explanation of the cache's size, for users
    grammars: bool = False  # whether every shard supports them
    adapters: bool = False
    adapter_bytes: int = 0  # memory for adapters on each shard
    generation: bool = True
    embeddings: bool = False
    classification: bool = False
    labels: tuple[str, ...] = ()  # names by index

    @property
    def wishes(self) -> tuple[Wish, ...]:
        """Kinds of output that the model can produce."""
        can = {Wish.TEXT: self.generation, Wish.VECTOR: self.embeddings, Wish.LABELS: self.classification}
        return tuple(wish for wish, is_there in can.items() if is_there)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A sequence as it enters a batch, with everything that a shard needs to run it."""

    sequence: int
    request: Request
    generated: tuple[int, ...]
    blocks: tuple[int, ...]
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    sequence: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Grant:
    sequence: int
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
    newcomers: tuple[Newcomer, ...]
    chunks: tuple[Chunk, ...]
    alongside: bool
    grants: tuple[Grant, ...] = ()
    keep: tuple[int, ...] | None = None  # a Filter of the batch, sent with the step


@dataclass(frozen=True, slots=True)
class Decode:
    batch: int
    grants: tuple[Grant, ...] = ()
    keep: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Embed:
    """A pooling step: whole texts that enter no batch and leave no state on the shards."""

    wish: Wish
    newcomers: tuple[Newcomer, ...]


Message = Filter | Concat | Prefill | Decode | Embed


@dataclass(frozen=True, slots=True)
class Bring:
    """Order to load a resource on every rank, outside the sequence of steps."""

    resource: Resource


@dataclass(frozen=True, slots=True)
class Remove:
    """Order to unload a resource from every rank, outside the sequence of steps."""

    resource: Resource


Move = Bring | Remove


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages of one step, in order. The last has the number `order`, the others the numbers just below it."""

    epoch: int
    order: int
    messages: tuple[Message, ...]
    # Sequences in the step (any may fail), those that must return tokens unless they fail, and the predicted seconds.
    members: tuple[int, ...]
    expects: tuple[int, ...]
    seconds: float


@dataclass(slots=True)
class AnswerRow:
    tokens: Rows[int]
    logprobs: Rows[float]
    top: Rows[Rows[tuple[int, float]]] = ()  # per token, best first; empty when none were asked for


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    sequence: int
    start: int  # index of the prompt token that the first value belongs to
    logprobs: Rows[float]


@dataclass(frozen=True, slots=True)
class Labelling:
    """Token classification of one text: for each token the index of its most probable label and the probability."""

    labels: Rows[int]
    scores: Rows[float]


Vector = Rows[float]
Told = Vector | Labelling


@dataclass(slots=True)
class Answer:
    """The answer to the last message of a plan; without rows when that was a Filter or a Concat."""

    epoch: int
    seconds: float
    rows: dict[int, AnswerRow]
    failed: dict[int, str]
    prompt_logprobs: Rows[PromptLogprobs] = ()
    told: Mapping[int, Told] = field(default_factory=dict)  # results of an Embed step, by sequence
