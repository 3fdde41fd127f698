"""A step: drafted by a policy, sent to the shards, in flight until its answer arrives; and the end of a sequence."""

from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field

from router.request import FinishReason, Request, RequestKind
from router.scheduler.cost_model import StepLoad
from router.scheduler.running_sequences import Batch
from router.scheduler.sequence import Sequence
from router.scheduler.shard_messages import (
    BlockGrant,
    Concat,
    Decode,
    Filter,
    NewSequence,
    PoolingStep,
    Prefill,
    PrefillChunk,
    ShardMessage,
)


@dataclass(slots=True)
class StepDraft:
    """A step being planned.

    The messages in `messages_before` are sent ahead of it. Without a batch there is no step, except for a pooling step,
    whose chunks are whole texts.
    """

    messages_before: list[Filter | Concat] = field(default_factory=list)
    batch: Batch | None = None
    # All ready sequences of the batch, or none. The message does not name them: the shards find the same ones.
    decoding: list[Sequence] = field(default_factory=list)
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)  # with the number of tokens of each
    new_sequences: list[NewSequence] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    has_turned_new_sequence_away: bool = False  # the budget had no tokens for a sequence that could start otherwise
    decode_load: StepLoad | None = None  # load of the decodes without chunks, if a policy has computed it
    kind: RequestKind = RequestKind.GENERATE  # kind of all its sequences

    def build_messages(self) -> list[ShardMessage]:
        """Return the messages. To be called before `advance_sequences`: chunks begin where the sequences stand."""
        messages: list[ShardMessage] = [*self.messages_before]
        if self.kind is not RequestKind.GENERATE:
            messages.append(PoolingStep(self.kind, tuple(self.new_sequences)))
        elif self.batch is not None and (self.chunks or self.decoding):
            # A Filter of the step's own batch is sent with the step, which saves a call.
            last, keep = messages[-1] if messages else None, None
            if isinstance(last, Filter) and last.batch == self.batch.id:
                keep = last.keep
                messages.pop()
            messages.append(
                Prefill(self.batch.id, tuple(self.new_sequences),
                        tuple([PrefillChunk(s.id, s.num_scheduled_tokens, length) for s, length in self.chunks]),
                        bool(self.decoding), tuple(self.grants), keep) if self.chunks
                else Decode(self.batch.id, tuple(self.grants), keep))
        return messages

    def advance_sequences(self, last_message_number: int) -> "UnansweredPlan":
        """Advance the sequences as if the step were sent already, and return what its answer is to be applied to."""
        decoding, chunks = self.decoding, self.chunks
        if not decoding and not chunks:
            return UnansweredPlan(last_message_number)
        load = self.decode_load or compute_decode_load(decoding)
        for sequence in decoding:
            sequence.num_scheduled_tokens += 1
            sequence.num_outputs_in_flight += 1
        members_with_output = members = tuple(decoding)
        chunk_writes: tuple[ChunkWrite, ...] = ()
        if chunks:
            num_tokens, context, finished_prompts = 0, load.context, []
            for sequence, length in chunks:
                sequence.num_scheduled_tokens += length
                num_tokens += length
                context += sequence.num_scheduled_tokens
                if sequence.num_scheduled_tokens >= sequence.num_tokens_to_prefill:
                    sequence.num_outputs_in_flight += 1
                    finished_prompts.append(sequence)
            load = StepLoad(load.rows + len(chunks), num_tokens, context)
            members = (*decoding, *[sequence for sequence, _ in chunks])
            members_with_output = (*decoding, *finished_prompts)
            chunk_writes = tuple([ChunkWrite(sequence, sequence.blocks, sequence.num_scheduled_tokens)
                                  for sequence, _ in chunks])
        return UnansweredPlan(last_message_number, members, members_with_output, chunk_writes, load,
                              self.has_turned_new_sequence_away, self.kind)


@dataclass(frozen=True, slots=True)
class ChunkWrite:
    """Cache content that a chunk writes, valid while the sequence has the same list of blocks (`is_valid`).

    A sequence that was preempted since, and entered again, has another list. Blocks are granted in place: `is_valid`
    compares the list object.
    """

    sequence: Sequence
    blocks: list[int]
    num_computed_tokens: int  # number of the sequence's tokens in the cache after the chunk

    @property
    def is_valid(self) -> bool:
        return self.sequence.blocks is self.blocks


@dataclass(frozen=True, slots=True)
class UnansweredPlan:
    """A plan that the scheduler waits to see answered: mostly a step, or else Filters and Concats alone (no members, no
    load)."""

    last_message_number: int
    members: tuple[Sequence, ...] = ()
    members_with_output: tuple[Sequence, ...] = ()  # those that must get tokens unless they fail
    chunk_writes: tuple[ChunkWrite, ...] = ()
    load: StepLoad | None = None  # None if nothing is computed
    has_turned_new_sequence_away: bool = False  # the budget had no tokens for a sequence that could start otherwise
    kind: RequestKind = RequestKind.GENERATE


def compute_decode_load(decoding: list[Sequence]) -> StepLoad:
    """Return the load of decoding one token per sequence. To be called before the step is sent."""
    return StepLoad(rows=len(decoding), context=sum([s.length + s.num_outputs_in_flight for s in decoding]))


def find_finish_point(request: Request, num_generated: int, tokens: GenericSequence[int],
                      stop_token_count: int | None) -> tuple[int, FinishReason | None]:
    """Return how many of a row's tokens count, and the finish reason if the sequence ends with the last of them.

    No other code decides from tokens that a sequence is finished. If several reasons apply to one token, the length
    goes first, then the end token.
    """
    if len(tokens) == 1 and stop_token_count is None and num_generated + 1 < request.max_new_tokens:  # nearly always
        return 1, FinishReason.END_TOKEN if tokens[0] in request.end_tokens else None
    limit = min(len(tokens), request.max_new_tokens - num_generated,
                len(tokens) if stop_token_count is None else stop_token_count)
    for index in range(limit):
        if num_generated + index + 1 >= request.max_new_tokens:
            return index + 1, FinishReason.LENGTH
        if tokens[index] in request.end_tokens:
            return index + 1, FinishReason.END_TOKEN
    return limit, FinishReason.STOP_STRING if stop_token_count is not None else None
