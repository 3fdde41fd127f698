"""Logits processors, which run before temperature and draw: penalties, biases, and tokens that may not be chosen.

Each function changes, in place, only the rows that use it. Counts of a sequence's tokens are kept with the sequence.
"""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shard.sampling.watermark import apply_watermark
from shard.state.sequence import Sequence
from shard.state.token_occurrences import TokenOccurrences

LogitIndices = tuple[Tensor, Tensor]  # row and token of every logit to change


def apply_repetition_penalty(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Divide positive logits and multiply the others, for every token of prompt and output."""
    seen_tokens = count_all_tokens(logits, rows, sequences)
    penalties = seen_tokens.repeat_by_row([s.sampling.repetition_penalty for s in sequences])
    values = logits[seen_tokens.logit_indices]
    logits[seen_tokens.logit_indices] = torch.where(values > 0, values / penalties, values * penalties)


def apply_relative_frequency_penalty(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Penalise tokens by their share of all tokens, those of the prompt included."""
    seen_tokens = count_all_tokens(logits, rows, sequences)
    lengths = seen_tokens.repeat_by_row([float(len(s.tokens)) for s in sequences])
    penalties = seen_tokens.repeat_by_row([s.sampling.relative_frequency_penalty for s in sequences])
    logits[seen_tokens.logit_indices] -= seen_tokens.counts / lengths * penalties


def apply_frequency_penalty(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Penalise tokens by how often they were generated."""
    seen_tokens = count_generated_tokens(logits, rows, sequences)
    logits[seen_tokens.logit_indices] -= seen_tokens.counts * seen_tokens.repeat_by_row(
        [s.sampling.frequency_penalty for s in sequences])


def apply_presence_penalty(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Penalise tokens that were generated, however often."""
    seen_tokens = count_generated_tokens(logits, rows, sequences)
    logits[seen_tokens.logit_indices] -= seen_tokens.repeat_by_row([s.sampling.presence_penalty for s in sequences])


def apply_biases(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    indices = make_logit_indices(logits, rows, [s.sampling.biased_tokens for s in sequences])
    logits[indices] += concatenate_rows("f", [s.sampling.biases for s in sequences]).to(logits.device)


def apply_min_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Ban end tokens until `min_tokens` tokens are generated."""
    banned = [s.sampling.end_tokens if len(s.tokens) - s.num_prompt_tokens < s.sampling.min_tokens else ()
              for s in sequences]
    logits[make_logit_indices(logits, rows, banned)] = -torch.inf


def apply_allowed_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    indices = make_logit_indices(logits, rows, [s.sampling.allowed_tokens for s in sequences])
    kept_logits = logits[indices]
    logits[rows] = -torch.inf
    logits[indices] = kept_logits


def apply_banned_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    logits[make_logit_indices(logits, rows, [s.sampling.banned_tokens for s in sequences])] = -torch.inf


# By sampling parameter, in the order in which the processors apply.
PROCESSORS: dict[str, Callable[[Tensor, list[int], list[Sequence]], None]] = {
    "watermark": apply_watermark,
    "repetition_penalty": apply_repetition_penalty,
    "relative_frequency_penalty": apply_relative_frequency_penalty,
    "frequency_penalty": apply_frequency_penalty,
    "presence_penalty": apply_presence_penalty,
    "biased_tokens": apply_biases,
    "min_tokens": apply_min_tokens,
    "allowed_tokens": apply_allowed_tokens,
    "banned_tokens": apply_banned_tokens,
}


def process_logits(logits: Tensor, sequences: list[Sequence]) -> None:
    for name, processor in PROCESSORS.items():
        rows = [row for row, sequence in enumerate(sequences) if getattr(sequence.sampling, name)]
        if rows:
            processor(logits, rows, [sequences[row] for row in rows])


def needs_processing(sequence: Sequence) -> bool:
    return any(getattr(sequence.sampling, name) for name in PROCESSORS)


# ---------------------------------------------------------------------------------------------------------------------
# Rows with different numbers of entries, one after the other


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """Tokens that some rows have seen, an entry for each distinct token of a row."""

    logit_indices: LogitIndices
    counts: Tensor  # [entries]
    num_tokens_by_row: list[int]  # of each row

    def repeat_by_row(self, values: list[float]) -> Tensor:
        """Repeat each row's value for each of its entries."""
        device = self.counts.device
        return torch.tensor(values, device=device).repeat_interleave(
            torch.tensor(self.num_tokens_by_row, device=device))


def count_all_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> SeenTokens:
    return make_seen_tokens(logits, rows, [update_token_counts(sequence, 0) for sequence in sequences])


def count_generated_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> SeenTokens:
    return make_seen_tokens(logits, rows,
                            [update_token_counts(sequence, sequence.num_prompt_tokens) for sequence in sequences])


def update_token_counts(sequence: Sequence, start_index: int) -> TokenOccurrences:
    counts = sequence.token_counts.get(start_index)
    if counts is None:
        counts = sequence.token_counts[start_index] = TokenOccurrences(start_index)
    counts.update(sequence.tokens)
    return counts


def make_seen_tokens(logits: Tensor, rows: list[int], token_counts: list[TokenOccurrences]) -> SeenTokens:
    indices = make_logit_indices(logits, rows, [row_counts.token_ids for row_counts in token_counts])
    counts = concatenate_rows("f", [past.counts for past in token_counts]).to(logits.device)
    return SeenTokens(indices, counts, [len(past.token_ids) for past in token_counts])


def make_logit_indices(logits: Tensor, rows: list[int],
                       tokens_by_row: GenericSequence[GenericSequence[int]]) -> LogitIndices:
    num_entries = torch.tensor([len(entries) for entries in tokens_by_row])
    return (torch.tensor(rows).repeat_interleave(num_entries).to(logits.device),
            concatenate_rows("q", tokens_by_row).to(logits.device))


def concatenate_rows(typecode: str, rows: GenericSequence[GenericSequence[float]]) -> Tensor:
    """Concatenate rows into one tensor. Buffers are used, since making a tensor from a long list is slow."""
    entries = bytearray().join([array(typecode, entries) for entries in rows])
    dtype = {"q": torch.int64, "f": torch.float32}[typecode]
    return torch.frombuffer(entries, dtype=dtype) if entries else torch.empty(0, dtype=dtype)
