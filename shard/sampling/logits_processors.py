"""Logits processors, which run before temperature and draw: penalties, biases, and tokens that may not be chosen.

Each function changes, in place, only the rows that use it. Counts of a sequence's tokens are kept with the sequence.
The watermark makes half of the vocabulary, chosen by the token before, likelier, so that text can be recognized; on
every device the halves are those of text-generation-inference on a CPU, so that its detectors recognize the text.
"""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shard.state.sequence import Sequence, TokenOccurrences

WATERMARK_HASH_KEY = 15485863
GREEN_SHARE = 0.5
GREEN_LOGIT_BIAS = 2.0

LogitIndices = tuple[Tensor, Tensor]  # row and token of every logit to change


def apply_watermark(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    for row, sequence in zip(rows, sequences, strict=True):
        logits[row, choose_green_tokens(sequence.tokens[-1], logits.shape[-1]).to(logits.device)] += GREEN_LOGIT_BIAS


def choose_green_tokens(previous_token: int, vocabulary_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(WATERMARK_HASH_KEY * previous_token)
    return torch.randperm(vocabulary_size, generator=generator)[:int(vocabulary_size * GREEN_SHARE)]


def apply_penalty(parameter: str, logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Change the logits of tokens that were seen, as PENALTIES has it."""
    with_prompt, penalise = PENALTIES[parameter]
    seen_tokens = count_tokens(logits, rows, sequences, with_prompt=with_prompt)
    penalties = seen_tokens.repeat_by_row([getattr(sequence.sampling, parameter) for sequence in sequences])
    logits[seen_tokens.logit_indices] = penalise(logits[seen_tokens.logit_indices], seen_tokens, penalties)


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


# By sampling parameter, in the order in which they apply: whether tokens of the prompt count, too, and the new logits,
# from the logits [entries] of the tokens that were seen and the penalty of each.
PENALTIES: dict[str, tuple[bool, Callable[[Tensor, "SeenTokens", Tensor], Tensor]]] = {
    "repetition_penalty": (True, lambda logits, _, penalty: torch.where(logits > 0, logits / penalty,
                                                                        logits * penalty)),
    # by a token's share of all tokens
    "relative_frequency_penalty": (True, lambda logits, seen, penalty: logits - seen.counts / seen.lengths * penalty),
    "frequency_penalty": (False, lambda logits, seen, penalty: logits - seen.counts * penalty),
    "presence_penalty": (False, lambda logits, _, penalty: logits - penalty),  # however often it was generated
}
# By sampling parameter, in the order in which the processors apply.
PROCESSORS: dict[str, Callable[[Tensor, list[int], list[Sequence]], None]] = {
    "watermark": apply_watermark,
    **{parameter: partial(apply_penalty, parameter) for parameter in PENALTIES},
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
    sequences: list[Sequence]  # of each row

    @property
    def lengths(self) -> Tensor:  # [entries]
        """Number of tokens of each entry's sequence."""
        return self.repeat_by_row([float(len(sequence.tokens)) for sequence in self.sequences])

    def repeat_by_row(self, values: list[float]) -> Tensor:
        """Repeat each row's value for each of its entries."""
        device = self.counts.device
        return torch.tensor(values, device=device).repeat_interleave(
            torch.tensor(self.num_tokens_by_row, device=device))


def count_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence], *, with_prompt: bool) -> SeenTokens:
    """Count the tokens of each sequence: all, or those that were generated."""
    counts_by_row: list[TokenOccurrences] = []
    for sequence in sequences:
        start_index = 0 if with_prompt else sequence.num_prompt_tokens
        if start_index not in sequence.token_counts:
            sequence.token_counts[start_index] = TokenOccurrences(start_index)
        counts_by_row.append(sequence.token_counts[start_index])
        counts_by_row[-1].update(sequence.tokens)
    return SeenTokens(make_logit_indices(logits, rows, [seen.token_ids for seen in counts_by_row]),
                      concatenate_rows("f", [seen.counts for seen in counts_by_row]).to(logits.device),
                      [len(seen.token_ids) for seen in counts_by_row], sequences)


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
