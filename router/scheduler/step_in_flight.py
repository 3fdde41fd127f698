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

    A sequence that was preempted since, and entered again, has other blocks.
    """

    sequence: Sequence
    blocks: list[int]
    num_computed_tokens: int  # number of the sequence's tokens in the cache after the chunk

    @property
    def is_valid(self) -> bool:
        return self.sequence.blocks is self.blocks


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that was planned and is not answered yet."""

    last_message_number: int
    members: tuple[Sequence, ...] = ()
    members_with_output: tuple[Sequence, ...] = ()
    chunk_writes: tuple[ChunkWrite, ...] = ()
    load: StepLoad | None = None  # None if nothing is computed
    is_budget_exhausted: bool = False  # some prompts did not fit into the step
    kind: RequestKind = RequestKind.GENERATE

    @classmethod
    def from_draft(cls, draft: StepDraft, last_message_number: int) -> "StepInFlight":
        """Create the step of a draft and advance its sequences: from here on their tokens count as computed."""
        if not draft.has_step:
            return cls(last_message_number)
        load = compute_step_load(draft)
        members_with_output = members = tuple(draft.decoding)
        for sequence in draft.decoding:
            sequence.num_sent_tokens += 1
            sequence.num_outputs_in_flight += 1
        for sequence, length in draft.chunks:
            sequence.num_sent_tokens += length
        if draft.chunks:
            prompts = [sequence for sequence, _ in draft.chunks]
            members = (*members_with_output, *prompts)
            finished_prompts = [sequence for sequence in prompts if sequence.is_ready_to_decode]
            for sequence in finished_prompts:
                sequence.num_outputs_in_flight += 1
            members_with_output = (*members_with_output, *finished_prompts)
        chunk_writes = tuple([ChunkWrite(sequence, sequence.blocks, sequence.num_sent_tokens)
                              for sequence, _ in draft.chunks])
        return cls(last_message_number, members, members_with_output, chunk_writes, load, draft.is_budget_exhausted,
                   draft.kind)


def get_sequence_ids(sequences: Iterable[Sequence]) -> tuple[int, ...]:
    return tuple([sequence.id for sequence in sequences])
