"""Encoding of a step's results into the columns of the answer messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from shard.pb import shard_pb2 as pb
from shard.state.step import Step


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """Tokens that a step yielded for one sequence: one entry per token."""

    tokens: list[int]
    logprobs: list[float]
    top_tokens: list[list[int]] = field(default_factory=list)  # empty, or the best candidates for every token
    top_logprobs: list[list[float]] = field(default_factory=list)

    def extend(self, later: "SequenceOutput") -> None:
        """Add the tokens behind these."""
        self.tokens.extend(later.tokens)
        self.logprobs.extend(later.logprobs)
        self.top_tokens.extend(later.top_tokens)
        self.top_logprobs.extend(later.top_logprobs)


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of consecutive prompt tokens, the first of which has the index `start_index`."""

    start_index: int
    logprobs: list[float]
    top_tokens: list[list[int]] = field(default_factory=list)  # empty, or the best candidates for every token
    top_logprobs: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TokenClassification:
    """Labels of a text's tokens: one entry per token."""

    labels: list[int]
    scores: list[float]


def write_sequence_outputs(answer: pb.StepAnswer, step: Step, outputs: Mapping[int, SequenceOutput]) -> None:
    """Write a row for every sampled sequence that did not fail, and the ids and failures of all that failed."""
    sequences = [sequence for sequence in step.sampled_sequences if sequence.id in outputs]
    ordered_outputs = [outputs[sequence.id] for sequence in sequences]
    counts = [len(output.tokens) for output in ordered_outputs]
    answer.sequences.extend([sequence.id for sequence in sequences])
    if max(counts, default=1) > 1:
        answer.num_tokens.extend(counts)
    answer.tokens.extend(chain.from_iterable([output.tokens for output in ordered_outputs]))
    answer.logprobs.extend(chain.from_iterable([output.logprobs for output in ordered_outputs]))
    if any(output.top_tokens for output in ordered_outputs):
        for output in ordered_outputs:
            answer.num_top_tokens.extend(map(len, output.top_tokens or [[]] * len(output.tokens)))
            answer.top_tokens.extend(chain.from_iterable(output.top_tokens))
            answer.top_logprobs.extend(chain.from_iterable(output.top_logprobs))
    failed = step.failed_sequences + [sequence for sequence in step.sequences
                                      if sequence.failure is not None and sequence.id not in outputs]
    for sequence in failed:
        answer.failed.append(sequence.id)
        answer.failures.append(sequence.failure or pb.FAILURE_UNSPECIFIED)


def write_prompt_logprobs(answer: pb.StepAnswer, prompt_logprobs: Mapping[int, PromptLogprobs]) -> None:
    has_top_tokens = any(part.top_tokens for part in prompt_logprobs.values())
    for sequence, part in prompt_logprobs.items():
        if part.logprobs:
            if has_top_tokens:
                answer.num_prompt_top_tokens.append(len(part.top_tokens[0]) if part.top_tokens else 0)
                answer.prompt_top_tokens.extend(chain.from_iterable(part.top_tokens))
                answer.prompt_top_logprobs.extend(chain.from_iterable(part.top_logprobs))
            answer.prompt_sequences.append(sequence)
            answer.prompt_starts.append(part.start_index)
            answer.num_prompt_logprobs.append(len(part.logprobs))
            answer.prompt_logprobs.extend(part.logprobs)


def write_embeddings(answer: pb.EmbedAnswer, embeddings: Sequence[list[float] | None]) -> None:
    """Write one vector per text; None marks a text that failed."""
    rows = [vector for vector in embeddings if vector is not None]
    _write_text_failures(answer, embeddings)
    answer.width = len(rows[0]) if rows else 0
    answer.values.extend(chain.from_iterable(rows))


def write_labels(answer: pb.EmbedAnswer, labels_by_text: Sequence[TokenClassification | None]) -> None:
    """Write the labels of each text; None marks a text that failed."""
    rows = [row for row in labels_by_text if row is not None]
    _write_text_failures(answer, labels_by_text)
    answer.num_labels.extend([len(row.labels) for row in rows])
    answer.labels.extend(chain.from_iterable([row.labels for row in rows]))
    answer.scores.extend(chain.from_iterable([row.scores for row in rows]))


def _write_text_failures(answer: pb.EmbedAnswer, results: Sequence[object]) -> None:
    answer.failed.extend([index for index, row in enumerate(results) if row is None])
    answer.failures.extend([pb.NON_FINITE] * len(answer.failed))
