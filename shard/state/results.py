"""Encoding of a step's results into the columns of the answer messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from shard.pb import shard_pb2 as pb
from shard.state.transaction import Step


@dataclass(frozen=True, slots=True)
class Said:
    """Tokens that a step yielded for one sequence: one entry per token."""

    tokens: list[int]
    logprobs: list[float]
    top_tokens: list[list[int]] = field(default_factory=list)  # empty, or the best candidates for every token
    top_logprobs: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Logprobs of consecutive prompt tokens, the first of which has the index `start`."""

    start: int
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labels of a text's tokens: one entry per token."""

    labels: list[int]
    scores: list[float]


def write_rows(answer: pb.StepAnswer, step: Step, said: Mapping[int, Said]) -> None:
    """Write a row for every yielding sequence that did not fail, and the ids and failures of all that failed."""
    rows = [sequence for sequence in step.yielding if sequence.id in said]
    words = [said[sequence.id] for sequence in rows]
    counts = [len(word.tokens) for word in words]
    answer.sequences.extend([sequence.id for sequence in rows])
    if max(counts, default=1) > 1:
        answer.num_tokens.extend(counts)
    answer.tokens.extend(chain.from_iterable([word.tokens for word in words]))
    answer.logprobs.extend(chain.from_iterable([word.logprobs for word in words]))
    if any(word.top_tokens for word in words):
        _write_top_tokens(answer, words)
    failed = step.failed + [sequence for sequence in step.sequences
                            if sequence.failure is not None and sequence.id not in said]
    answer.failed.extend([sequence.id for sequence in failed])
    answer.failures.extend([sequence.failure or pb.FAILURE_UNSPECIFIED for sequence in failed])


def _write_top_tokens(answer: pb.StepAnswer, words: list[Said]) -> None:
    for word in words:
        for tokens in word.top_tokens or [[] for _ in word.tokens]:
            answer.num_top_tokens.append(len(tokens))
        answer.top_tokens.extend(chain.from_iterable(word.top_tokens))
        answer.top_logprobs.extend(chain.from_iterable(word.top_logprobs))


def write_prompts(answer: pb.StepAnswer, prompts: Mapping[int, PromptPart]) -> None:
    for sequence, part in prompts.items():
        if part.logprobs:
            answer.prompt_sequences.append(sequence)
            answer.prompt_starts.append(part.start)
            answer.num_prompt_logprobs.append(len(part.logprobs))
            answer.prompt_logprobs.extend(part.logprobs)


def write_vectors(answer: pb.EmbedAnswer, vectors: Sequence[list[float] | None]) -> None:
    """Write one vector per text; None marks a text that failed."""
    rows = [vector for vector in vectors if vector is not None]
    _write_failed(answer, vectors)
    answer.width = len(rows[0]) if rows else 0
    answer.values.extend(chain.from_iterable(rows))


def write_labels(answer: pb.EmbedAnswer, labelled: Sequence[Labelled | None]) -> None:
    """Write the labels of each text; None marks a text that failed."""
    rows = [row for row in labelled if row is not None]
    _write_failed(answer, labelled)
    answer.num_labels.extend([len(row.labels) for row in rows])
    answer.labels.extend(chain.from_iterable([row.labels for row in rows]))
    answer.scores.extend(chain.from_iterable([row.scores for row in rows]))


def _write_failed(answer: pb.EmbedAnswer, told: Sequence[object]) -> None:
    answer.failed.extend([place for place, row in enumerate(told) if row is None])
    answer.failures.extend([pb.NON_FINITE] * len(answer.failed))
