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

import torch
from torch import Generator, Tensor

# (matrix, density, generator); density: fraction of entries kept
PruneFunction = Callable[[Tensor, float, Generator], Tensor]
SignElection = Callable[[Sequence[Tensor]], Tensor]  # result has the elected sign in each entry
JoinFunction = Callable[[Sequence[Tensor], Sequence[float], SignElection], Tensor]


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """Settings of a merge: names of strategy and sign election, and the fraction of entries kept."""

    strategy: str
    density: float
    sign_method: str


def merge_matrices(matrices: Sequence[Tensor], weights: Sequence[float], settings: MergeSettings,
                   generator: Generator) -> Tensor:
    """Return the merged matrix. All have the same shape; random pruning draws from `generator` in their order."""
    prune, join = MERGE_STRATEGIES[settings.strategy]
    pruned = [prune(matrix, settings.density, generator) for matrix in matrices]
    return join(pruned, weights, SIGN_METHODS[settings.sign_method])


def split_factor(factor: float) -> tuple[float, float]:
    """Split `factor` into two factors of equal magnitude, one per LoRA matrix; the first has the sign."""
    root = math.sqrt(abs(factor))
    return math.copysign(root, factor), root


# ---------------------------------------------------------------------------------------------------------------------
# Pruning


def prune_by_magnitude(matrix: Tensor, density: float, _generator: Generator) -> Tensor:
    numbers = matrix.flatten()
    places = numbers.abs().topk(int(density * len(numbers)), sorted=False).indices
    return torch.zeros_like(numbers).index_copy_(0, places, numbers[places]).view_as(matrix)


def prune_at_random(matrix: Tensor, density: float, generator: Generator) -> Tensor:
    is_kept = torch.bernoulli(torch.full_like(matrix, density), generator=generator)
    return matrix * is_kept / density


# ---------------------------------------------------------------------------------------------------------------------
# Joining


def join_by_weighted_sum(matrices: Sequence[Tensor], weights: Sequence[float], _elect: SignElection) -> Tensor:
    return reduce(torch.add, (matrix * weight for matrix, weight in zip(matrices, weights, strict=True)))


def join_by_ties_mean(matrices: Sequence[Tensor], weights: Sequence[float], elect: SignElection) -> Tensor:
    """TIES: average only the entries that have the elected sign; pruned (zero) entries do not count."""
    sign = torch.where(elect(matrices) >= 0, 1.0, -1.0)
    votes = [matrix.sign() == sign for matrix in matrices]
    total = join_by_weighted_sum([matrix * vote for matrix, vote in zip(matrices, votes, strict=True)], weights, elect)
    return total / reduce(torch.add, (vote.float() for vote in votes)).clamp(min=1)


# How the sign of each entry is elected, without regard to the adapters' weights.
SIGN_METHODS: dict[str, SignElection] = {
    "total": lambda matrices: reduce(torch.add, matrices),
    "frequency": lambda matrices: reduce(torch.add, [matrix.sign() for matrix in matrices]),
}
# How matrices are pruned, and how the pruned ones are joined.
MERGE_STRATEGIES: dict[str, tuple[PruneFunction, JoinFunction]] = {
    "linear": (lambda matrix, _density, _generator: matrix, join_by_weighted_sum),
    "ties": (prune_by_magnitude, join_by_ties_mean),
    "dare_linear": (prune_at_random, join_by_weighted_sum),
    "dare_ties": (prune_at_random, join_by_ties_mean),
}
