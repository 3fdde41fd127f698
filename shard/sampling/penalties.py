"""Logits processors, which run before temperature and draw: penalties, biases, and tokens that may not be chosen.

Each function changes, in place, only the rows that use it. Counts of a sequence's tokens are kept with the sequence.
"""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from shard.sampling.watermark import watermark
from shard.state.sequence import Sequence
from shard.state.token_counts import Seen

Places = tuple[Tensor, Tensor]  # row and token of every logit to change


def repetition_penalty(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Divide positive logits and multiply the others, for every token of prompt and output."""
    past = everything(logits, rows, sequences)
    penalties = past.spread([s.sampling.repetition_penalty for s in sequences])
    found = logits[past.places]
    logits[past.places] = torch.where(found > 0, found / penalties, found * penalties)


def relative_frequency_penalty(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Penalise tokens by their share of all tokens, those of the prompt included."""
    past = everything(logits, rows, sequences)
    lengths = past.spread([float(len(s.tokens)) for s in sequences])
    penalties = past.spread([s.sampling.relative_frequency_penalty for s in sequences])
    logits[past.places] -= past.counts / lengths * penalties


def frequency_penalty(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Penalise tokens by how often they were generated."""
    past = generated(logits, rows, sequences)
    logits[past.places] -= past.counts * past.spread([s.sampling.frequency_penalty for s in sequences])


def presence_penalty(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Penalise tokens that were generated, however often."""
    past = generated(logits, rows, sequences)
    logits[past.places] -= past.spread([s.sampling.presence_penalty for s in sequences])


def biases(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    places = places_of(logits, rows, [s.sampling.biased_tokens for s in sequences])
    logits[places] += flat("f", [s.sampling.biases for s in sequences]).to(logits.device)


def min_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    """Ban end tokens until `min_tokens` tokens are generated."""
    early = [s.sampling.end_tokens if len(s.tokens) - s.num_prompt_tokens < s.sampling.min_tokens else ()
             for s in sequences]
    logits[places_of(logits, rows, early)] = -torch.inf


def allowed_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    places = places_of(logits, rows, [s.sampling.allowed_tokens for s in sequences])
    allowed = logits[places]
    logits[rows] = -torch.inf
    logits[places] = allowed


def banned_tokens(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> None:
    logits[places_of(logits, rows, [s.sampling.banned_tokens for s in sequences])] = -torch.inf


# By sampling parameter, in the order in which the processors apply.
PROCESSORS: dict[str, Callable[[Tensor, list[int], list[Sequence]], None]] = {
    "watermark": watermark,
    "repetition_penalty": repetition_penalty,
    "relative_frequency_penalty": relative_frequency_penalty,
    "frequency_penalty": frequency_penalty,
    "presence_penalty": presence_penalty,
    "biased_tokens": biases,
    "min_tokens": min_tokens,
    "allowed_tokens": allowed_tokens,
    "banned_tokens": banned_tokens,
}


def process(logits: Tensor, sequences: list[Sequence]) -> None:
    for name, change in PROCESSORS.items():
        rows = [row for row, sequence in enumerate(sequences) if getattr(sequence.sampling, name)]
        if rows:
            change(logits, rows, [sequences[row] for row in rows])


def is_processed(sequence: Sequence) -> bool:
    return any(getattr(sequence.sampling, name) for name in PROCESSORS)


# ---------------------------------------------------------------------------------------------------------------------
# Rows with different numbers of entries, one after the other


@dataclass(frozen=True, slots=True)
class Past:
    """Tokens that some rows have seen, an entry for each distinct token of a row."""

    places: Places
    counts: Tensor  # [entries]
    num_entries: list[int]  # of each row

    def spread(self, values: list[float]) -> Tensor:
        """Repeat each row's value for each of its entries."""
        device = self.counts.device
        return torch.tensor(values, device=device).repeat_interleave(torch.tensor(self.num_entries, device=device))


def everything(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> Past:
    return past_of(logits, rows, [seen(sequence, 0) for sequence in sequences])


def generated(logits: Tensor, rows: list[int], sequences: list[Sequence]) -> Past:
    return past_of(logits, rows, [seen(sequence, sequence.num_prompt_tokens) for sequence in sequences])


def seen(sequence: Sequence, start: int) -> Seen:
    tokens = sequence.seen.get(start)
    if tokens is None:
        tokens = sequence.seen[start] = Seen(start)
    tokens.follow(sequence.tokens)
    return tokens


def past_of(logits: Tensor, rows: list[int], pasts: list[Seen]) -> Past:
    places = places_of(logits, rows, [past.ids for past in pasts])
    counts = flat("f", [past.counts for past in pasts]).to(logits.device)
    return Past(places, counts, [len(past.ids) for past in pasts])


def places_of(logits: Tensor, rows: list[int], tokens: Rows[Rows[int]]) -> Places:
    num_entries = torch.tensor([len(entries) for entries in tokens])
    return (torch.tensor(rows).repeat_interleave(num_entries).to(logits.device),
            flat("q", tokens).to(logits.device))


def flat(kind: str, rows: Rows[Rows[float]]) -> Tensor:
    """Concatenate rows into one tensor. Buffers are used, since making a tensor from a long list is slow."""
    entries = bytearray().join([array(kind, entries) for entries in rows])
    dtype = {"q": torch.int64, "f": torch.float32}[kind]
    return torch.frombuffer(entries, dtype=dtype) if entries else torch.empty(0, dtype=dtype)
