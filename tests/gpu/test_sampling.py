"""Tests that the sampler chooses the same tokens on a GPU as on a CPU."""

from typing import Any

import pytest
import torch

from shard.sampling.sampler import Sampler
from tests.shard.asking import asking, random_logits

pytestmark = pytest.mark.gpu

VOCABULARY_SIZE = 32_000
ASKED: list[dict[str, Any]] = [
    {}, {"top_n_tokens": 5}, {"raw_logprobs": True, "repetition_penalty": 1.3},
    {"frequency_penalty": 0.7, "presence_penalty": 0.2}, {"relative_frequency_penalty": 0.5},
    {"banned_tokens": tuple(range(40))}, {"allowed_tokens": (5, 3, 9)}, {"biased_tokens": (7,), "biases": (50.0,)},
    {"min_tokens": 8, "end_tokens": (1, 2)}, {"watermark": True},
]
DRAWN: list[dict[str, Any]] = [
    {}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}, {"typical_p": 0.8}, {"top_k": 100, "top_p": 0.5},
]


def choose(device: str, asked: list[dict[str, Any]], seed: int = 0) -> Any:
    logits = random_logits(len(asked), VOCABULARY_SIZE, seed).to(device)
    sequences = [asking(output=(4, 4, 7), key=row, **sampling) for row, sampling in enumerate(asked)]
    return Sampler(VOCABULARY_SIZE, device).choose(logits, sequences)


def test_greedy_choices_are_those_of_a_cpu(device: str) -> None:
    found, expected = choose(device, ASKED), choose("cpu", ASKED)
    assert found.tokens == expected.tokens
    assert found.top_tokens == expected.top_tokens
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert all(found.finite)


@pytest.mark.parametrize("sampling", DRAWN, ids=str)
def test_draws_are_those_of_a_cpu_but_for_rounding(device: str, sampling: dict[str, Any]) -> None:
    """Sums of probabilities differ in their last bits, which moves the border between two tokens now and then."""
    asked = [{"temperature": 0.8, **sampling}] * 32
    found, expected = choose(device, asked).tokens, choose("cpu", asked).tokens
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= 30


def test_draws_come_out_the_same_again(device: str) -> None:
    asked = [{"temperature": 1.0, "top_p": 0.95}] * 40
    assert choose(device, asked) == choose(device, asked)


def test_equal_logits_go_to_the_lowest_id(device: str) -> None:
    logits = torch.zeros(3, VOCABULARY_SIZE, device=device)
    logits[1, 7_777:] = 1.0
    logits[2, [9, 14_000]] = 2.0
    assert Sampler(VOCABULARY_SIZE, device).choose(logits, [asking() for _ in range(3)]).tokens == [0, 7_777, 9]


def test_logits_that_are_not_finite_fail_their_row_alone(device: str) -> None:
    logits = random_logits(3, VOCABULARY_SIZE).to(device)
    logits[1, 5] = torch.nan
    assert Sampler(VOCABULARY_SIZE, device).choose(logits, [asking() for _ in range(3)]).finite == [True, False, True]
