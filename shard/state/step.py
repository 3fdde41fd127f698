"""Contents of one forward pass: the sequences that decode and the chunks that run beside them, and where each stands on
the token axis."""

from dataclasses import dataclass, field
from typing import NamedTuple

from shard.state.sequence import Sequence

MIN_ROWS = 2  # of a forward pass: docs/concepts/exactness.md, "A single row is computed as two"


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive tokens that a step runs, of those that the sequence entered with: its prompt and, after a preemption,
    what it had generated."""

    sequence: Sequence
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def is_last(self) -> bool:
        return self.end == self.sequence.num_tokens_to_prefill


@dataclass(slots=True)
class Step:
    """Contents of one forward pass."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    failed_sequences: list[Sequence] = field(default_factory=list)  # left out: failed before, or no position left

    @property
    def sequences(self) -> list[Sequence]:
        return self.decodes + [chunk.sequence for chunk in self.chunks]

    @property
    def sampled_sequences(self) -> list[Sequence]:
        """Sequences whose last token is known after this step: each yields a token or fails."""
        return self.decodes + [chunk.sequence for chunk in self.chunks if chunk.is_last]

    def move_out_failed(self) -> None:
        """Move decoding sequences that have failed meanwhile to `failed_sequences`."""
        self.failed_sequences += [sequence for sequence in self.decodes if sequence.failure is not None]
        self.decodes = [sequence for sequence in self.decodes if sequence.failure is None]


class TokenSpan(NamedTuple):
    """Consecutive tokens of one sequence in a step: rows on the token axis, positions, block table."""

    first_row: int  # of its first token on the token axis
    start: int  # that token's position in the sequence
    length: int  # 1 for a decode
    blocks: list[int]  # the sequence's block table

    @property
    def end(self) -> int:
        return self.start + self.length


class StepLayout(NamedTuple):
    """Layout of a step's sequences on the token axis: the decodes first, then the chunks, in the order of the step."""

    sequences: list[Sequence]
    spans: list[TokenSpan]  # of each sequence
    num_decodes: int
    sampled_sequences: list[Sequence]  # `Step.sampled_sequences`
    sampled_rows: list[int]  # of the last token of each sampled sequence
    num_dummy_rows: int  # behind all others: one if there is a single token


def lay_out_step(step: Step) -> StepLayout:
    """Return the layout, which holds until a sequence of the step grows."""
    spans = [TokenSpan(row, len(sequence.tokens) - 1, 1, sequence.blocks) for row, sequence in enumerate(step.decodes)]
    num_decodes = num_rows = len(spans)
    sampled_rows = list(range(num_decodes))
    for chunk in step.chunks:
        spans.append(TokenSpan(num_rows, chunk.start, chunk.length, chunk.sequence.blocks))
        num_rows += chunk.length
        if chunk.is_last:
            sampled_rows.append(num_rows - 1)
    return StepLayout(step.sequences, spans, num_decodes, step.sampled_sequences, sampled_rows,
                      max(0, MIN_ROWS - num_rows))
