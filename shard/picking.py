"""Tokens that are chosen where the logits are, as part of what is captured of a step: for sequences that ask for the
best token or for one that is drawn, perhaps from a few candidates, and for nothing else.

What comes out is what `sampling.py` says of the same logits, to the last bit, or that it has to be asked. Nothing here
waits for the device.
"""

from collections.abc import Sequence as Rows
from typing import NamedTuple

import torch
from torch import Tensor

from shard.candidates import FEW, Finder
from shard.choice import Asked, pick
from shard.device import Standing
from shard.draws import uniforms
from shard.filters import FILTERS
from shard.penalties import is_processed
from shard.sampling import divisor, wants_raw
from shard.sequence import Sequence

FILTERED = len(FILTERS)
COLUMNS = FILTERED + 3  # what rows ask of filters, their draws, divisors of logits, and whether logprobs are raw


class Found(NamedTuple):
    """What came out for every row."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows]
    fine: Tensor  # [rows] bool; where not, `sampling.py` has to be asked


def is_plain(sequence: Sequence) -> bool:
    """Whether it asks for no more than is done here, which does not change while it runs."""
    if sequence.plain is None:
        sequence.plain = not (sequence.grammar or sequence.sampling.top_n_tokens or is_processed(sequence)
                              or wants_raw(sequence))
    return sequence.plain


def is_drawn(sequences: Rows[Sequence]) -> bool:
    """Whether anybody wants another than the best token."""
    return any(sequence.sampling.temperature for sequence in sequences)


class Picker:
    """For steps of up to so many rows, of logits of one width. What rows ask for stands in columns that stay."""

    def __init__(self, rows: int, vocabulary_size: int, device: torch.device) -> None:
        self._finder = Finder(vocabulary_size)
        whoever_is_nobody = [*[0.0] * (FILTERED + 1), 1.0, 0.0]
        self._columns = Standing([rows] * COLUMNS, torch.float64, device, whoever_is_nobody)

    def write(self, sequences: Rows[Sequence], indices: list[int]) -> None:
        """What the next step draws; `indices` are those of the tokens in their sequences."""
        samplings = [sequence.sampling for sequence in sequences]
        filters = [[getattr(one, name) if one.temperature else 0 for one in samplings] for name in FILTERS]
        drawn = uniforms([sequence.key for sequence in sequences], indices).tolist()
        draws = [draw if one.temperature else 0.0 for draw, one in zip(drawn, samplings, strict=True)]
        divisors = [divisor(one.temperature) for one in samplings]
        self._columns.send([*filters, draws, divisors, [one.raw_logprobs for one in samplings]])

    def best(self, logits: Tensor) -> Found:
        """Of every row the best token. The logits stay as they are."""
        tokens = self._finder.best(logits)
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        return Found(tokens, logprobs, are_finite(logits, logprobs))

    def drawn(self, logits: Tensor) -> Found:
        """The logits stay as they are."""
        columns = [column[:len(logits)] for column in self._columns.lists]
        draws, divisors, raw = columns[FILTERED:]
        filters = dict(zip(FILTERS, (column.float() for column in columns), strict=False))
        cooled = logits / divisors.float()[:, None]
        candidates = self._finder.candidates(cooled, cooled.log_softmax(-1), FEW)
        picked = pick(candidates, Asked(draws, raw.bool(), filters), captured=True)
        return Found(picked.tokens, picked.logprobs, picked.decided & are_finite(logits, picked.logprobs))


def are_finite(logits: Tensor, logprobs: Tensor) -> Tensor:  # [rows] bool
    return logits.sum(-1).isfinite() & logprobs.isfinite()
