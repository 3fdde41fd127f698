"""Messages between the scheduler and the shards, as plain data, named mostly as in proto/shard.proto. There a message
number is `order`, `includes_decodes` is `alongside`, a PoolingStep is an EmbedRequest, and a StepResult a StepAnswer.

They are rows, not columns; `shards/message_conversion.py` converts between the two.
"""

from collections.abc import Mapping
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field

from router.request import LoadableResource, PoolingOutput, Request, RequestKind


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that enters a batch, new or after a preemption, with everything that a shard needs to run it."""

    sequence_id: int
    request: Request
    generated: tuple[int, ...]
    blocks: tuple[int, ...]
    num_cached_tokens: int = 0  # leading tokens found in the prefix cache


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive tokens that the sequence entered with: its prompt and, after a preemption, what it had generated."""

    sequence_id: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockGrant:
    """Cache blocks allocated to a running sequence for its next tokens."""

    sequence_id: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """Message: remove all sequences from a batch except the kept ones."""

    batch: int
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """Message: join batches into the first."""

    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Message: run chunks of prompts in a batch, and with `includes_decodes` a decode of its ready sequences (whose
    prompts are complete) in the same step.
    """

    batch: int
    new_sequences: tuple[NewSequence, ...]
    chunks: tuple[PrefillChunk, ...]
    includes_decodes: bool
    grants: tuple[BlockGrant, ...] = ()
    keep: tuple[int, ...] | None = None  # a Filter of the batch, sent with the step


@dataclass(frozen=True, slots=True)
class Decode:
    """Message: run one step for every ready sequence of a batch."""

    batch: int
    grants: tuple[BlockGrant, ...] = ()
    keep: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PoolingStep:
    """A pooling step, Embed in proto/shard.proto: whole texts that enter no batch and leave no state on the shards."""

    kind: RequestKind
    new_sequences: tuple[NewSequence, ...]


ShardMessage = Filter | Concat | Prefill | Decode | PoolingStep


@dataclass(frozen=True, slots=True)
class LoadResource:
    """Order to load a resource on every rank, outside the sequence of steps."""

    resource: LoadableResource


@dataclass(frozen=True, slots=True)
class UnloadResource:
    """Order to unload a resource from every rank, outside the sequence of steps."""

    resource: LoadableResource


ResourceCommand = LoadResource | UnloadResource


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Messages to send, in order: mostly Filters and Concats and then a step, sometimes no step.

    A policy drafts it as a StepDraft. The engine keeps it as a PlanInFlight, with the future of its answer; the
    scheduler keeps an UnansweredPlan, to which the answer is applied.
    """

    epoch: int
    last_message_number: int  # number of the last message; the others have the numbers just below it
    messages: tuple[ShardMessage, ...]
    member_ids: tuple[int, ...]  # of the sequences in the step, any of which may fail
    output_ids: tuple[int, ...]  # of the members that must return tokens unless they fail
    predicted_seconds: float  # 0 without a step


@dataclass(slots=True)
class StepResultRow:
    """Tokens that one sequence got in a step, with their logprobs."""

    tokens: GenericSequence[int]
    logprobs: GenericSequence[float]
    # per token, best first; empty when none were asked for
    top_logprobs: GenericSequence[GenericSequence[tuple[int, float]]] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of consecutive prompt tokens of one sequence."""

    sequence_id: int
    start: int  # index of the prompt token that the first value belongs to
    logprobs: GenericSequence[float]
    # per logprob, best first; empty when none were asked for
    top_logprobs: GenericSequence[GenericSequence[tuple[int, float]]] = ()


@dataclass(slots=True)
class StepResult:
    """The answer to the last message of a plan; without rows when that was a Filter or a Concat."""

    epoch: int
    seconds: float
    rows: dict[int, StepResultRow]
    failures: dict[int, str]
    prompt_logprobs: GenericSequence[PromptLogprobs] = ()
    pooling_outputs: Mapping[int, PoolingOutput] = field(default_factory=dict)  # results of a pooling step, by sequence
