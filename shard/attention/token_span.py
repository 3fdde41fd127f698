"""Span: the tokens of one sequence that a step runs, consecutive on the token axis."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenSpan(NamedTuple):
    """Consecutive tokens of one sequence in a step: rows on the token axis, positions, block table."""

    first_row: int  # of its first token on the token axis
    start: int  # that token's position in the sequence
    length: int  # 1 for a decode
    blocks: list[int]  # the sequence's block table

    @property
    def end(self) -> int:
        return self.start + self.length


def make_int64_tensor(values: Sequence[int]) -> Tensor:
    """Return an int64 tensor of the values, in a seventh of the time of `torch.tensor`."""
    return torch.frombuffer(array("q", values), dtype=torch.int64) if values else torch.empty(0, dtype=torch.int64)
