"""What the core sends to the shards and hears from them, as plain data.

The same nouns as proto/shard.proto, row by row instead of column by column. Only `wire.py` knows both forms.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from router.request import Request, Resource, Wish


@dataclass(frozen=True, slots=True)
class Measurement:
    """One step that a shard timed: what it consisted of and the seconds it took."""

    rows: int
    chunk_tokens: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the shards said of themselves; the router believes nothing else about the model."""

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
    exact: bool = False  # whether answers are the same to the last bit in any company
    measurements: tuple[Measurement, ...] = ()
    cache_bytes: int = 0  # on all ranks together
    why: str = ""  # the cache has this size, for people
    grammars: bool = False  # whether every shard takes them
    adapters: bool = False
    adapter_bytes: int = 0  # that there is room for on each of them
    generation: bool = True
    embeddings: bool = False
    classification: bool = False
    labels: tuple[str, ...] = ()  # their names, by number

    @property
    def wishes(self) -> tuple[Wish, ...]:
        """What can be asked of the model."""
        can = {Wish.TEXT: self.generation, Wish.VECTOR: self.embeddings, Wish.LABELS: self.classification}
        return tuple(wish for wish, is_there in can.items() if is_there)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A sequence as it enters a batch: everything a shard must know of it."""

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
    keep: tuple[int, ...] | None = None  # a Filter of the batch that rides on the step


@dataclass(frozen=True, slots=True)
class Decode:
    batch: int
    grants: tuple[Grant, ...] = ()
    keep: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Embed:
    """Texts that are run as a whole, beside all batches, and forgotten."""

    wish: Wish
    newcomers: tuple[Newcomer, ...]


Message = Filter | Concat | Prefill | Decode | Embed


@dataclass(frozen=True, slots=True)
class Bring:
    """Beside the steps: every rank should have it."""

    resource: Resource


@dataclass(frozen=True, slots=True)
class Remove:
    """Beside the steps: no rank need have it any more."""

    resource: Resource


Move = Bring | Remove


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages of one step in their order; the last has number `order`, those before it the numbers below."""

    epoch: int
    order: int
    messages: tuple[Message, ...]
    # The sequences that take part (any may fail), those that must answer with tokens unless they fail, and how long the
    # step should take.
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
    """For each token of a text the number of its likeliest label, and how likely it is."""

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
    told: Mapping[int, Told] = field(default_factory=dict)  # of texts that were run as a whole
