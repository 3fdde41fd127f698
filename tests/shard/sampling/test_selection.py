"""A token decided by a few candidates is bit-identical to the token from the whole vocabulary."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as some
from support.model_runs.sampling_sequences import make_random_logits
from torch import Tensor

from shard.sampling.best_candidates import (
    NUM_FEW_CANDIDATES,
    NUM_MANY_CANDIDATES,
    CandidateFinder,
    sort_whole_vocabulary,
)
from shard.sampling.selection import SampledToken, sample_from_candidates
from shard.state.sequence import SamplingParams

fractions = some.sampled_from([0.0, 0.0, 0.02, 0.1, 0.5, 0.9, 0.99, 1.0])
sampling_params = some.builds(SamplingParams, temperature=some.sampled_from([0.0, 1.0]),
                              top_k=some.sampled_from([0, 0, 1, 5, 64, 65, 66, 4000, 9000]), top_p=fractions,
                              typical_p=fractions, min_p=fractions, top_n_tokens=some.sampled_from([0, 1, 5, 70]),
                              raw_logprobs=some.booleans())
uniforms = some.one_of(some.floats(0.0, 1.0, exclude_max=True), some.sampled_from([0.0, 0.5, 1 - 2**-53]))
unfiltered_params = SamplingParams(temperature=1.0)


@some.composite
def random_logit_rows(draw: Any) -> Tensor:
    """Draw a row of logits, flat to sharp, with or without equal logits, with or without masked tokens."""
    size = draw(some.sampled_from([40, 65, 300, 9000]))
    logits = make_random_logits(1, size, draw(some.integers(0, 99)),
                                draw(some.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0])))
    if step := draw(some.sampled_from([0.0, 0.0, 0.5, 2.0])):
        logits = (logits / step).round() * step
    if allowed := draw(some.sampled_from([0, 0, 1, 3, 64, 65, 66])):
        mask = torch.full_like(logits, -torch.inf)
        mask[0, torch.randperm(size, generator=torch.Generator().manual_seed(allowed))[:allowed]] = 0.0
        logits += mask
    return logits


def sample_from_few(logits: Tensor, sampling: SamplingParams, uniform: float,
                    width: int = NUM_FEW_CANDIDATES) -> tuple[SampledToken, bool]:
    candidates = CandidateFinder(logits.shape[-1]).find_candidates(logits, logits.log_softmax(-1), width)
    (sampled_token,), (decided,) = sample_from_candidates(candidates, [sampling],
                                                          torch.tensor([uniform], dtype=torch.float64))
    return sampled_token, decided


def sample_from_all(logits: Tensor, sampling: SamplingParams, uniform: float) -> SampledToken:
    (sampled_token,), (decided,) = sample_from_candidates(sort_whole_vocabulary(logits[0], logits.log_softmax(-1)[0]),
                                       [sampling], torch.tensor([uniform], dtype=torch.float64))
    assert decided
    return sampled_token


@pytest.mark.slow
@settings(max_examples=400)
@example(torch.zeros(1, 9000), unfiltered_params, 0.0, NUM_FEW_CANDIDATES)
@example(torch.zeros(1, 300), SamplingParams(temperature=1.0, top_p=0.1), 0.5, NUM_FEW_CANDIDATES)
@example(torch.zeros(1, 66), SamplingParams(temperature=1.0, top_k=65), 0.99, NUM_FEW_CANDIDATES)
@given(random_logit_rows(), sampling_params, uniforms,
       some.sampled_from([NUM_FEW_CANDIDATES, NUM_MANY_CANDIDATES]))
def test_few_candidates_decide_as_the_whole_vocabulary_does(logits: Tensor, sampling: SamplingParams, uniform: float,
                                                            width: int) -> None:
    sampled_token, decided = sample_from_few(logits, sampling, uniform, width)
    assert not decided or sampled_token == sample_from_all(logits, sampling, uniform)


@pytest.mark.parametrize("sampling",
                         [SamplingParams(top_n_tokens=5), SamplingParams(temperature=1.0, top_p=0.9, typical_p=0.9),
                          SamplingParams(temperature=1.0, top_k=10), SamplingParams(temperature=1.0, min_p=0.05)],
                         ids=str)
def test_few_candidates_decide_sharp_distributions(sampling: SamplingParams) -> None:
    for seed in range(10):
        assert sample_from_few(make_random_logits(1, 9000, seed, scale=6.0), sampling, 0.5)[1]


@pytest.mark.parametrize("seed", range(5))
def test_greedy_sampling_ignores_filters(seed: int) -> None:
    logits = make_random_logits(1, 300, seed)
    sampled_token, _ = sample_from_few(logits, SamplingParams(top_k=2, top_p=0.1, min_p=0.9, top_n_tokens=3), 0.999)
    assert sampled_token == sample_from_all(logits, SamplingParams(top_n_tokens=3), 0.0)
    assert (sampled_token.token, len(sampled_token.top_tokens)) == (logits.argmax().item(), 3)


def test_logprobs_are_over_remaining_candidates_or_raw() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    (filtered,) = sample_from_few(logits, SamplingParams(temperature=1.0, top_k=2, top_n_tokens=4), 0.9)[:1]
    (raw,) = sample_from_few(logits, SamplingParams(temperature=1.0, top_k=2, top_n_tokens=4, raw_logprobs=True),
                             0.9)[:1]
    assert (filtered.token, filtered.top_tokens) == (1, [0, 1])
    assert filtered.top_logprobs == logits[0, :2].log_softmax(-1).tolist()
    assert (raw.token, raw.top_tokens) == (1, [0, 1, 2, 3])
    assert raw.top_logprobs == logits[0].log_softmax(-1).tolist()
