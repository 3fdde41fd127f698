"""Merge of several float32 matrices into one, as in PEFT: each is pruned and weighted, then all are joined.

    linear       no pruning; weighted sum
    ties         keep the entries of largest magnitude; mean over those entries that have the elected sign
    dare_linear  keep random entries, rescaled by 1 / density; weighted sum
    dare_ties    prune as dare_linear, join as ties
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Generator, Tensor

Prune = Callable[[Tensor, float, Generator], Tensor]  # (matrix, density, generator); density: fraction of entries kept
Elect = Callable[[Sequence[Tensor]], Tensor]  # result has the elected sign in each entry
Join = Callable[[Sequence[Tensor], Sequence[float], Elect], Tensor]


@dataclass(frozen=True, slots=True)
class Merging:
    strategy: str
    density: float
    sign: str


class Strategy(NamedTuple):
    prune: Prune
    join: Join


def merged(matrices: Sequence[Tensor], weights: Sequence[float], merging: Merging, generator: Generator) -> Tensor:
    """Return the merged matrix. All have the same shape; random pruning draws from `generator` in their order."""
    prune, join = STRATEGIES[merging.strategy]
    pruned = [prune(matrix, merging.density, generator) for matrix in matrices]
    return join(pruned, weights, SIGNS[merging.sign])


def roots(factor: float) -> tuple[float, float]:
    """Split `factor` into two factors of equal magnitude, one per LoRA matrix; the first has the sign."""
    root = math.sqrt(abs(factor))
    return math.copysign(root, factor), root


# ---------------------------------------------------------------------------------------------------------------------
# Pruning


def whole(matrix: Tensor, _density: float, _generator: Generator) -> Tensor:
    return matrix


def largest(matrix: Tensor, density: float, _generator: Generator) -> Tensor:
    numbers = matrix.flatten()
    places = numbers.abs().topk(int(density * len(numbers)), sorted=False).indices
    return torch.zeros_like(numbers).index_copy_(0, places, numbers[places]).view_as(matrix)


def drawn(matrix: Tensor, density: float, generator: Generator) -> Tensor:
    left = torch.bernoulli(torch.full_like(matrix, density), generator=generator)
    return matrix * left / density


# ---------------------------------------------------------------------------------------------------------------------
# Election of the sign of each entry, without regard to the adapters' weights


def by_total(matrices: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, matrices)


def by_frequency(matrices: Sequence[Tensor]) -> Tensor:
    return by_total([matrix.sign() for matrix in matrices])


# ---------------------------------------------------------------------------------------------------------------------
# Joining


def summed(matrices: Sequence[Tensor], weights: Sequence[float], _elect: Elect) -> Tensor:
    return reduce(torch.add, (matrix * weight for matrix, weight in zip(matrices, weights, strict=True)))


def agreed(matrices: Sequence[Tensor], weights: Sequence[float], elect: Elect) -> Tensor:
    """TIES: average only the entries that have the elected sign; pruned (zero) entries do not count."""
    sign = torch.where(elect(matrices) >= 0, 1.0, -1.0)
    votes = [matrix.sign() == sign for matrix in matrices]
    total = summed([matrix * vote for matrix, vote in zip(matrices, votes, strict=True)], weights, elect)
    return total / reduce(torch.add, (vote.float() for vote in votes)).clamp(min=1)


SIGNS: dict[str, Elect] = {"total": by_total, "frequency": by_frequency}
STRATEGIES = {
    "linear": Strategy(whole, summed),
    "ties": Strategy(largest, agreed),
    "dare_linear": Strategy(drawn, summed),
    "dare_ties": Strategy(drawn, agreed),
}
