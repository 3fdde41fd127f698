"""Contents of one forward pass: the sequences that decode and the chunks that run beside them, and where each stands on
the token axis."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from shard.state.sequence import Sequence

MIN_ROWS = 2  # of a forward pass, unless it is recorded: docs/concepts/exactness.md, "A single row is computed as two"


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
    # guesses of the tokens behind the last one, which the step verifies, by the id of a decoding sequence
    drafts: dict[int, list[int]] = field(default_factory=dict)

    @property
    def sequences(self) -> list[Sequence]:
        return self.decodes + [chunk.sequence for chunk in self.chunks]

    @property
    def sampled_sequences(self) -> list[Sequence]:
        """Sequences whose last token is known after this step: each yields a token or fails."""
        return self.decodes + [chunk.sequence for chunk in self.chunks if chunk.is_last]

    def separate_failed_sequences(self) -> None:
        """Move decoding sequences that have failed meanwhile to `failed_sequences`."""
        if failed := [sequence for sequence in self.decodes if sequence.failure is not None]:
            self.failed_sequences += failed
            self.decodes = [sequence for sequence in self.decodes if sequence.failure is None]


class TokenSpan(NamedTuple):
    """Consecutive tokens of one sequence in a step: rows on the token axis, positions, block table."""

    first_row: int  # of its first token on the token axis
    start: int  # that token's position in the sequence
    length: int  # 1 for a decode without guesses
    blocks: list[int]  # the sequence's block table

    @property
    def end(self) -> int:
        return self.start + self.length


class StepLayout(NamedTuple):
    """Layout of a step's sequences on the token axis: the decodes of one token first, then those with guesses, then the
    chunks, each in the order of the step."""

    sequences: list[Sequence]
    spans: list[TokenSpan]  # of each sequence
    num_decodes: int  # of one token
    sampled_sequences: list[Sequence]  # `Step.sampled_sequences`, in the order of `sequences`
    # of the last known token of each sampled sequence, and behind these of the guesses, those of a sequence together
    sampled_rows: list[int]
    num_dummy_rows: int  # behind all others: one if there is a single token
    drafts: dict[int, list[int]]  # `Step.drafts`

    def iter_sampled(self) -> Iterator[Sequence]:
        """Return the sequence of each sampled row."""
        yield from self.sampled_sequences
        for sequence in self.sampled_sequences:
            yield from repeat(sequence, len(self.drafts.get(sequence.id, ())))


def lay_out_step(step: Step) -> StepLayout:
    """Return the layout, which holds until a sequence of the step grows."""
    drafts = step.drafts
    single = [sequence for sequence in step.decodes if sequence.id not in drafts] if drafts else step.decodes
    spans = [TokenSpan(row, len(sequence.tokens) - 1, 1, sequence.blocks) for row, sequence in enumerate(single)]
    num_decodes = num_rows = len(spans)
    sampled_rows, draft_rows = list(range(num_decodes)), list[int]()
    drafted = [sequence for sequence in step.decodes if sequence.id in drafts] if drafts else []
    for sequence in drafted:
        span = TokenSpan(num_rows, len(sequence.tokens) - 1, 1 + len(drafts[sequence.id]), sequence.blocks)
        spans.append(span)
        sampled_rows.append(num_rows)
        num_rows += span.length
        draft_rows += range(span.first_row + 1, num_rows)
    sequences, sampled_sequences = single + drafted, single + drafted
    for chunk in step.chunks:
        spans.append(TokenSpan(num_rows, chunk.start, chunk.length, chunk.sequence.blocks))
        sequences.append(chunk.sequence)
        num_rows += chunk.length
        if chunk.is_last:
            sampled_sequences.append(chunk.sequence)
            sampled_rows.append(num_rows - 1)
    return StepLayout(sequences, spans, num_decodes, sampled_sequences, sampled_rows + draft_rows,
                      max(0, MIN_ROWS - num_rows), drafts)
