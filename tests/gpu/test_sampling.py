"""Tests that the sampler chooses the same tokens on a GPU as on a CPU."""

from typing import Any

import pytest
import torch
from support.model_runs.sampling_sequences import make_random_logits, make_sampling_sequence

from shard.sampling.sampler import Sampler

pytestmark = pytest.mark.gpu

VOCABULARY_SIZE = 32_000
GREEDY_OPTIONS: list[dict[str, Any]] = [
    {}, {"top_n_tokens": 5}, {"raw_logprobs": True, "repetition_penalty": 1.3},
    {"frequency_penalty": 0.7, "presence_penalty": 0.2}, {"relative_frequency_penalty": 0.5},
    {"banned_tokens": tuple(range(40))}, {"allowed_tokens": (5, 3, 9)}, {"biased_tokens": (7,), "biases": (50.0,)},
    {"min_tokens": 8, "end_tokens": (1, 2)}, {"watermark": True},
]
RANDOM_OPTIONS: list[dict[str, Any]] = [
    {}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}, {"typical_p": 0.8}, {"top_k": 100, "top_p": 0.5},
]


def sample_rows(device: str, options_by_row: list[dict[str, Any]], seed: int = 0) -> Any:
    logits = make_random_logits(len(options_by_row), VOCABULARY_SIZE, seed).to(device)
    sequences = [make_sampling_sequence(output=(4, 4, 7), key=row, **sampling)
                 for row, sampling in enumerate(options_by_row)]
    return Sampler(VOCABULARY_SIZE, device).sample(logits, sequences)


def test_greedy_tokens_match_the_cpu(device: str) -> None:
    output, expected = sample_rows(device, GREEDY_OPTIONS), sample_rows("cpu", GREEDY_OPTIONS)
    assert output.tokens == expected.tokens
    assert output.top_tokens == expected.top_tokens
    assert output.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert all(output.is_finite)


@pytest.mark.parametrize("sampling", RANDOM_OPTIONS, ids=str)
def test_random_tokens_match_the_cpu_except_for_rounding(device: str, sampling: dict[str, Any]) -> None:
    """Sums of probabilities differ in their last bits, which moves the border between two tokens now and then."""
    options_by_row = [{"temperature": 0.8, **sampling}] * 32
    tokens, expected_tokens = sample_rows(device, options_by_row).tokens, sample_rows("cpu", options_by_row).tokens
    assert sum(one == other for one, other in zip(tokens, expected_tokens, strict=True)) >= 30


def test_random_sampling_is_repeatable(device: str) -> None:
    options_by_row = [{"temperature": 1.0, "top_p": 0.95}] * 40
    assert sample_rows(device, options_by_row) == sample_rows(device, options_by_row)


def test_lowest_id_wins_among_equal_logits(device: str) -> None:
    logits = torch.zeros(3, VOCABULARY_SIZE, device=device)
    logits[1, 7_777:] = 1.0
    logits[2, [9, 14_000]] = 2.0
    assert Sampler(VOCABULARY_SIZE, device).sample(logits,
                                                   [make_sampling_sequence() for _ in range(3)]).tokens == [0, 7_777, 9]


def test_non_finite_logits_fail_only_their_own_row(device: str) -> None:
    logits = make_random_logits(3, VOCABULARY_SIZE).to(device)
    logits[1, 5] = torch.nan
    assert (Sampler(VOCABULARY_SIZE, device).sample(logits, [make_sampling_sequence() for _ in range(3)]).is_finite
            == [True, False, True])


def test_prompt_logprobs_and_candidates_match_the_cpu(device: str) -> None:
    logits = make_random_logits(70, VOCABULARY_SIZE)  # more rows than are computed at once
    targets = [row * 400 for row in range(70)]
    logprobs, tokens, token_logprobs = Sampler(VOCABULARY_SIZE, device).compute_prompt_logprobs(
        logits.to(device), targets, num_top_tokens=20)
    expected_logprobs, expected_tokens, expected_token_logprobs = Sampler(VOCABULARY_SIZE).compute_prompt_logprobs(
        logits, targets, num_top_tokens=20)
    assert tokens == expected_tokens
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
    for found, expected in zip(token_logprobs, expected_token_logprobs, strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
