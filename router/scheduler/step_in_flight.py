"""Step in flight: its sequences, those that must get tokens, what it writes into the cache, and its load."""

from collections.abc import Iterable
from dataclasses import dataclass

from router.request import RequestKind
from router.scheduler.cost_model import StepLoad
from router.scheduler.sequence import Sequence
from router.scheduler.step_policies import StepDraft, compute_step_load


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
class StepInFlight:
    """A plan that is not answered yet: mostly a step, or else only Filters and Concats (no members and no load)."""

    last_message_number: int
    members: tuple[Sequence, ...] = ()
    members_with_output: tuple[Sequence, ...] = ()  # those that must get tokens unless they fail
    chunk_writes: tuple[ChunkWrite, ...] = ()
    load: StepLoad | None = None  # None if nothing is computed
    has_turned_new_sequence_away: bool = False  # the budget had no tokens for a sequence that could start otherwise
    kind: RequestKind = RequestKind.GENERATE

    @classmethod
    def from_draft(cls, draft: StepDraft, last_message_number: int) -> "StepInFlight":
        """Return the step of a draft. To be called before `advance_sequences`."""
        if not draft.has_step:
            return cls(last_message_number)
        members_with_output = members = tuple(draft.decoding)
        if draft.chunks:
            members = (*draft.decoding, *[sequence for sequence, _ in draft.chunks])
            members_with_output = (*draft.decoding, *[
                sequence for sequence, length in draft.chunks
                if sequence.num_sent_tokens + length >= sequence.num_initial_tokens])
        chunk_writes = tuple([ChunkWrite(sequence, sequence.blocks, sequence.num_sent_tokens + length)
                              for sequence, length in draft.chunks])
        return cls(last_message_number, members, members_with_output, chunk_writes, compute_step_load(draft),
                   draft.has_turned_new_sequence_away, draft.kind)


def advance_sequences(draft: StepDraft) -> None:
    """Count the tokens of a drafted step as sent, and the outputs that it will give as in flight."""
    for sequence in draft.decoding:
        sequence.num_sent_tokens += 1
        sequence.num_outputs_in_flight += 1
    for sequence, length in draft.chunks:
        sequence.num_sent_tokens += length
        if sequence.is_ready_to_decode:
            sequence.num_outputs_in_flight += 1


def get_sequence_ids(sequences: Iterable[Sequence]) -> tuple[int, ...]:
    return tuple([sequence.id for sequence in sequences])
