"""Candidates compared with a full sort, for vocabularies with and without blocks, and with many equal logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from shard.sampling.candidates import FEW, MANY, Candidates, Finder, all_of
from tests.shard.asking import random_logits

# Fewer tokens than candidates, one more, too few blocks to choose from, whole blocks, and a remainder.
SIZES = [50, 66, 1000, 128 * 70, 128 * 70 + 40]

# From no equal logits to all equal, with cut-offs among equal ones.
rounding = some.sampled_from([0.01, 0.3, 1.0, 3.0, 100.0])


def coarse_logits(num_rows: int, size: int, seed: int, step: float) -> Tensor:
    return (random_logits(num_rows, size, seed) / step).round() * step


def sorted_ids(row: Tensor) -> list[int]:
    return row.sort(stable=True, descending=True).indices.tolist()


def sure_ids(candidates: Candidates, row: int) -> list[int]:
    return candidates.ids[row, candidates.sure[row]].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=20)
@given(seed=some.integers(0, 99), step=rounding)
def test_the_best_is_the_lowest_of_the_highest(size: int, seed: int, step: float) -> None:
    logits = coarse_logits(3, size, seed, step)
    assert Finder(size).best(logits).tolist() == [sorted_ids(row)[0] for row in logits]


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=30)
@given(seed=some.integers(0, 99), step=rounding, width=some.sampled_from([FEW, MANY]))
def test_sure_candidates_are_the_first_of_all(size: int, seed: int, step: float, width: int) -> None:
    logits = coarse_logits(2, size, seed, step)
    found = Finder(size).candidates(logits, logits.log_softmax(-1), width)
    for row in range(2):
        ids = sure_ids(found, row)
        assert ids == sorted_ids(logits[row])[:len(ids)]
        others = sorted_ids(logits[row])[len(ids):]
        assert not others or logits[row, others[0]] == found.logits[row, -1]


@settings(max_examples=30)
@given(seed=some.integers(0, 99), step=rounding)
def test_the_whole_row_is_sorted(seed: int, step: float) -> None:
    logits = coarse_logits(1, 500, seed, step)[0]
    found = all_of(logits, logits.log_softmax(-1))
    assert sure_ids(found, 0) == sorted_ids(logits)
    assert torch.equal(found.logprobs[0], logits.log_softmax(-1)[found.ids[0]])


def test_zero_has_no_sign() -> None:
    logits = torch.tensor([0.0, -0.0, 0.0, -1.0, -0.0])
    assert all_of(logits, logits).ids[0].tolist() == [0, 1, 2, 4, 3]


def test_a_few_allowed_tokens_are_all_there_is() -> None:
    logits = torch.full((1, 1000), -torch.inf)
    logits[0, [7, 900]] = torch.tensor([1.0, 2.0])
    found = Finder(1000).candidates(logits, logits.log_softmax(-1), FEW)
    assert sure_ids(found, 0) == [900, 7]
    assert found.has(torch.tensor([5])).tolist() == [True]


def test_more_equal_ones_than_are_looked_at_are_not_sure() -> None:
    found = Finder(1000).candidates(torch.zeros(1, 1000), torch.zeros(1, 1000), FEW)
    assert sure_ids(found, 0) == []
    assert found.has(torch.tensor([1])).tolist() == [False]
