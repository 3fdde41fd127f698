"""Unfiltered draws: each token's share of the uniform numbers is its probability."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from shard.sampling.candidates import FEW, Candidates, Finder
from shard.sampling.selection import Asked, pick
from shard.sampling.unfiltered import added_up
from tests.shard.asking import random_logits

NUM_DRAWS = 4000


def few_of(logits: Tensor) -> Candidates:
    return Finder(logits.shape[-1]).candidates(logits, logits.log_softmax(-1), FEW)


def drawn(logits: Tensor, draws: Tensor, **how: Any) -> tuple[list[int], list[float]]:
    picked = pick(few_of(logits), Asked(draws, torch.zeros(len(draws), dtype=torch.bool), {}), **how)
    assert picked.decided.all()
    return picked.tokens.tolist(), picked.logprobs.tolist()


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("size", [40, 66, 500, 3000])
def test_everybody_has_its_share(size: int, spread: float) -> None:
    """A token's uniform numbers are contiguous, so of evenly spaced ones it gets its share to within one."""
    logits = random_logits(1, size, size, spread)
    draws = (torch.arange(NUM_DRAWS, dtype=torch.float64) + 0.5) / NUM_DRAWS
    tokens, logprobs = drawn(logits.expand(NUM_DRAWS, -1), draws)
    shares = torch.bincount(torch.tensor(tokens), minlength=size) / NUM_DRAWS
    chances = logits.softmax(-1)[0]
    assert (shares - chances).abs().max() <= 1.01 / NUM_DRAWS
    assert logprobs == logits.log_softmax(-1)[0, torch.tensor(tokens)].tolist()


rows = some.lists(some.tuples(some.floats(0.0, 1.0, exclude_min=True, exclude_max=True), some.integers(0, 99),
                              some.sampled_from([0.0, 0.5, 3.0])), min_size=1, max_size=5)


@settings(max_examples=60)
@given(rows, some.sampled_from([40, 65, 66, 128, 700, 4000]))
def test_company_does_not_matter_nor_whether_anybody_looks(rows: list[tuple[float, int, float]], size: int) -> None:
    logits = torch.cat([random_logits(1, size, seed, spread) for _, seed, spread in rows])
    draws = torch.tensor([draw for draw, *_ in rows], dtype=torch.float64)
    alone = [drawn(logits[row:row + 1], draws[row:row + 1]) for row in range(len(rows))]
    together = ([token for (token,), _ in alone], [logprob for _, (logprob,) in alone])
    assert drawn(logits, draws) == drawn(logits, draws, captured=True) == together


@pytest.mark.parametrize("draw", [2.0**-53, 0.3, 0.9999, 1 - 2.0**-53])
@pytest.mark.parametrize("allowed", [1, 3, 66, 200])
def test_nobody_is_drawn_who_cannot_be(allowed: int, draw: float) -> None:
    ids = torch.randperm(5000, generator=torch.Generator().manual_seed(allowed))[:allowed]
    logits = torch.full((1, 5000), -torch.inf)
    logits[0, ids] = random_logits(1, allowed, 1, 0.1)[0]
    (token,), _ = drawn(logits, torch.tensor([draw], dtype=torch.float64), captured=True)
    assert token in ids.tolist()


@pytest.mark.parametrize("alike", [1, 2, 3])
def test_what_rounding_leaves_goes_to_the_best(alike: int) -> None:
    """The remainder never goes to a token with almost no probability."""
    logits = torch.full((1, 5000), -60.0)
    logits[0, 100:100 + alike] = 0.0
    for captured in (False, True):
        (token,), _ = drawn(logits, torch.tensor([1 - 2.0**-53], dtype=torch.float64), captured=captured)
        assert token in range(100, 100 + alike)


def test_halves_of_halves_are_the_sum() -> None:
    values = torch.arange(128.0).expand(2, 3, -1)
    assert added_up(values).tolist() == [[127 * 64.0] * 3] * 2
