"""Matrices of several adapters into one, as PEFT merges them: each is pruned and weighted, then all are joined.

    linear       nothing is pruned; the sum
    ties         the largest numbers are left; at each place the mean of those that have the sign that most have there
    dare_linear  numbers that are drawn are left, and made larger for those that are not; the sum
    dare_ties    the same; the mean

Matrices come in float32. Knows neither files nor adapters, nor which matrices belong together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Generator, Tensor

Prune = Callable[[Tensor, float, Generator], Tensor]  # a share of its numbers is left, the density
Elect = Callable[[Sequence[Tensor]], Tensor]  # at each place a number of the sign that most have
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
    """All of the same shape. What is drawn is drawn from `generator`, for one behind the other."""
    prune, join = STRATEGIES[merging.strategy]
    pruned = [prune(matrix, merging.density, generator) for matrix in matrices]
    return join(pruned, weights, SIGNS[merging.sign])


def roots(factor: float) -> tuple[float, float]:
    """For both matrices of a product that is multiplied with `factor`; one of them takes the sign."""
    root = math.sqrt(abs(factor))
    return math.copysign(root, factor), root


# ---------------------------------------------------------------------------------------------------------------------
# What is left of a matrix


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
# Which sign most have. Weights have no say in it.


def by_total(matrices: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, matrices)


def by_frequency(matrices: Sequence[Tensor]) -> Tensor:
    return by_total([matrix.sign() for matrix in matrices])


# ---------------------------------------------------------------------------------------------------------------------
# One out of several


def summed(matrices: Sequence[Tensor], weights: Sequence[float], _elect: Elect) -> Tensor:
    return reduce(torch.add, (matrix * weight for matrix, weight in zip(matrices, weights, strict=True)))


def agreed(matrices: Sequence[Tensor], weights: Sequence[float], elect: Elect) -> Tensor:
    """Who has nothing at a place, or another sign than most, does not count there."""
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
