"""Candidates compared with a full sort, for vocabularies with and without blocks, and with many equal logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from support.model_runs.sampling_sequences import make_rounded_logits
from torch import Tensor

from shard.sampling.best_candidates import (
    LARGER_CANDIDATE_COUNTS,
    NUM_FEW_CANDIDATES,
    Candidates,
    find_candidates,
    sort_whole_vocabulary,
)
from shard.sampling.logits_with_normalizers import compute_normalizers

pytestmark = pytest.mark.usefixtures("kernels_or_torch")

# Fewer tokens than candidates, one more, too few blocks to choose from, whole blocks, and a remainder.
VOCABULARY_SIZES = [50, 66, 1000, 128 * 70, 128 * 70 + 40]

# From no equal logits to all equal, with cut-offs among equal ones.
rounding_steps = some.sampled_from([0.01, 0.3, 1.0, 3.0, 100.0])


def sort_ids(row: Tensor) -> list[int]:
    return row.sort(stable=True, descending=True).indices.tolist()


def get_certain_ids(candidates: Candidates, row: int) -> list[int]:
    return candidates.token_ids[row, candidates.has_certain_rank[row]].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("size", VOCABULARY_SIZES)
@settings(max_examples=20)
@given(seed=some.integers(0, 99), step=rounding_steps)
def test_best_token_is_the_lowest_id_of_the_highest_logit(size: int, seed: int, step: float) -> None:
    logits = make_rounded_logits(3, size, seed, step)
    assert compute_normalizers(logits).best_tokens.tolist() == [sort_ids(row)[0] for row in logits]


@pytest.mark.slow
@pytest.mark.parametrize("size", VOCABULARY_SIZES)
@settings(max_examples=30)
@given(seed=some.integers(0, 99), step=rounding_steps,
       width=some.sampled_from([NUM_FEW_CANDIDATES, *LARGER_CANDIDATE_COUNTS]))
def test_certain_candidates_are_the_first_of_the_vocabulary(size: int, seed: int, step: float, width: int) -> None:
    logits = make_rounded_logits(2, size, seed, step)
    candidates = find_candidates(compute_normalizers(logits), width)
    for row in range(2):
        ids = get_certain_ids(candidates, row)
        assert ids == sort_ids(logits[row])[:len(ids)]
        uncertain_ids = sort_ids(logits[row])[len(ids):]
        assert not uncertain_ids or logits[row, uncertain_ids[0]] == candidates.logits[row, -1]


@settings(max_examples=30)
@given(seed=some.integers(0, 99), step=rounding_steps)
def test_whole_vocabulary_is_sorted(seed: int, step: float) -> None:
    logits = make_rounded_logits(1, 500, seed, step)
    candidates = sort_whole_vocabulary(compute_normalizers(logits))
    assert get_certain_ids(candidates, 0) == sort_ids(logits[0])
    torch.testing.assert_close(candidates.logprobs[0].double(),
                               logits.double().log_softmax(-1)[0, candidates.token_ids[0]], rtol=1e-6, atol=1e-6)


def test_negative_zero_equals_zero() -> None:
    logits = torch.tensor([[0.0, -0.0, 0.0, -1.0, -0.0]])
    assert sort_whole_vocabulary(compute_normalizers(logits)).token_ids[0].tolist() == [0, 1, 2, 4, 3]


def test_few_allowed_tokens_are_all_certain() -> None:
    logits = torch.full((1, 1000), -torch.inf)
    logits[0, [7, 900]] = torch.tensor([1.0, 2.0])
    candidates = find_candidates(compute_normalizers(logits), NUM_FEW_CANDIDATES)
    assert get_certain_ids(candidates, 0) == [900, 7]
    assert candidates.has_enough(torch.tensor([5])).tolist() == [True]


def test_more_equal_logits_than_candidates_are_not_certain() -> None:
    candidates = find_candidates(compute_normalizers(torch.zeros(1, 1000)), NUM_FEW_CANDIDATES)
    assert get_certain_ids(candidates, 0) == []
    assert candidates.has_enough(torch.tensor([1])).tolist() == [False]
