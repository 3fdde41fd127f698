"""Unfiltered draws: each token's share of the uniform numbers is its probability."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from support.model_runs.sampling_sequences import make_random_logits
from torch import Tensor

from shard.sampling.best_candidates import NUM_FEW_CANDIDATES, CandidateFinder, Candidates
from shard.sampling.selection import SamplingColumns, select_tokens
from shard.sampling.unfiltered_draws import sum_by_halves

NUM_DRAWS = 4000


def find_few_candidates(logits: Tensor) -> Candidates:
    return CandidateFinder(logits.shape[-1]).find_candidates(logits, logits.log_softmax(-1), NUM_FEW_CANDIDATES)


def sample_rows(logits: Tensor, uniforms: Tensor, **options: Any) -> tuple[list[int], list[float]]:
    selection = select_tokens(find_few_candidates(logits),
                              SamplingColumns(uniforms, torch.zeros(len(uniforms), dtype=torch.bool), {}), **options)
    assert selection.is_decided.all()
    return selection.tokens.tolist(), selection.logprobs.tolist()


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("size", [40, 66, 500, 3000])
def test_tokens_are_drawn_in_proportion_to_their_probabilities(size: int, spread: float) -> None:
    """A token's uniform numbers are contiguous, so of evenly spaced ones it gets its share to within one."""
    logits = make_random_logits(1, size, size, spread)
    uniforms = (torch.arange(NUM_DRAWS, dtype=torch.float64) + 0.5) / NUM_DRAWS
    tokens, logprobs = sample_rows(logits.expand(NUM_DRAWS, -1), uniforms)
    frequencies = torch.bincount(torch.tensor(tokens), minlength=size) / NUM_DRAWS
    probabilities = logits.softmax(-1)[0]
    assert (frequencies - probabilities).abs().max() <= 1.01 / NUM_DRAWS
    assert logprobs == logits.log_softmax(-1)[0, torch.tensor(tokens)].tolist()


row_lists = some.lists(some.tuples(some.floats(0.0, 1.0, exclude_min=True, exclude_max=True), some.integers(0, 99),
                                   some.sampled_from([0.0, 0.5, 3.0])), min_size=1, max_size=5)


@settings(max_examples=60)
@given(row_lists, some.sampled_from([40, 65, 66, 128, 700, 4000]))
def test_result_does_not_depend_on_other_rows_or_graph_capture(rows: list[tuple[float, int, float]], size: int) -> None:
    logits = torch.cat([make_random_logits(1, size, seed, spread) for _, seed, spread in rows])
    uniforms = torch.tensor([uniform for uniform, *_ in rows], dtype=torch.float64)
    alone = [sample_rows(logits[row:row + 1], uniforms[row:row + 1]) for row in range(len(rows))]
    expected = ([token for (token,), _ in alone], [logprob for _, (logprob,) in alone])
    assert sample_rows(logits, uniforms) == sample_rows(logits, uniforms, is_captured=True) == expected


@pytest.mark.parametrize("draw", [2.0**-53, 0.3, 0.9999, 1 - 2.0**-53])
@pytest.mark.parametrize("allowed", [1, 3, 66, 200])
def test_masked_tokens_are_never_drawn(allowed: int, draw: float) -> None:
    ids = torch.randperm(5000, generator=torch.Generator().manual_seed(allowed))[:allowed]
    logits = torch.full((1, 5000), -torch.inf)
    logits[0, ids] = make_random_logits(1, allowed, 1, 0.1)[0]
    (token,), _ = sample_rows(logits, torch.tensor([draw], dtype=torch.float64), is_captured=True)
    assert token in ids.tolist()


@pytest.mark.parametrize("num_equal", [1, 2, 3])
def test_probability_lost_to_rounding_goes_to_the_best_token(num_equal: int) -> None:
    """The remainder never goes to a token with almost no probability."""
    logits = torch.full((1, 5000), -60.0)
    logits[0, 100:100 + num_equal] = 0.0
    for captured in (False, True):
        (token,), _ = sample_rows(logits, torch.tensor([1 - 2.0**-53], dtype=torch.float64), is_captured=captured)
        assert token in range(100, 100 + num_equal)


def test_sum_by_halves_equals_the_sum() -> None:
    values = torch.arange(128.0).expand(2, 3, -1)
    assert sum_by_halves(values).tolist() == [[127 * 64.0] * 3] * 2
