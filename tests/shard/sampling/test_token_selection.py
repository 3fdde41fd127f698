"""A token decided by a few candidates is bit-identical to the token from the whole vocabulary; without filters, each
token's share of the uniform numbers is its probability."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as some
from support.model_runs.sampling_sequences import make_random_logits
from torch import Tensor

from shard.sampling.best_candidates import (
    LARGER_CANDIDATE_COUNTS,
    NUM_FEW_CANDIDATES,
    Candidates,
    find_candidates,
    sort_whole_vocabulary,
)
from shard.sampling.logits_with_normalizers import compute_normalizers
from shard.sampling.token_selection import (
    SampledToken,
    draw_uniforms,
    sample_from_candidates,
    select_tokens,
    sum_by_halves,
)
from shard.state.sequence import SamplingParams

NUM_DRAWS = 4000
NUM_WORD_VALUES = 2**64

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
    candidates = find_candidates(compute_normalizers(logits), width)
    (sampled_token,), (decided,) = sample_from_candidates(candidates, [sampling],
                                                          torch.tensor([uniform], dtype=torch.float64))
    return sampled_token, decided


def sample_from_all(logits: Tensor, sampling: SamplingParams, uniform: float) -> SampledToken:
    (sampled_token,), (decided,) = sample_from_candidates(sort_whole_vocabulary(compute_normalizers(logits)),
                                                         [sampling], torch.tensor([uniform], dtype=torch.float64))
    assert decided
    return sampled_token


given_logits_and_candidates = given(random_logit_rows(), sampling_params, uniforms,
                                    some.sampled_from([NUM_FEW_CANDIDATES, *LARGER_CANDIDATE_COUNTS]))


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_or_torch")
@settings(max_examples=150)
@example(torch.zeros(1, 9000), unfiltered_params, 0.0, NUM_FEW_CANDIDATES)
@example(torch.zeros(1, 300), SamplingParams(temperature=1.0, top_p=0.1), 0.5, NUM_FEW_CANDIDATES)
@example(torch.zeros(1, 66), SamplingParams(temperature=1.0, top_k=65), 0.99, NUM_FEW_CANDIDATES)
@given_logits_and_candidates
def test_few_candidates_decide_as_the_whole_vocabulary_does(logits: Tensor, sampling: SamplingParams, uniform: float,
                                                            width: int) -> None:
    check_choice_from_few(logits, sampling, uniform, width)


@pytest.mark.long
@pytest.mark.timeout(600)
@settings(max_examples=2000)
@given_logits_and_candidates
def test_few_candidates_decide_as_the_whole_vocabulary_does_many_times(
        logits: Tensor, sampling: SamplingParams, uniform: float, width: int) -> None:
    check_choice_from_few(logits, sampling, uniform, width)


def check_choice_from_few(logits: Tensor, sampling: SamplingParams, uniform: float, width: int) -> None:
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
    assert raw.top_logprobs == pytest.approx(logits[0].log_softmax(-1).tolist(), rel=1e-6)


# -- rows that no filter narrows


def find_few_candidates(logits: Tensor) -> Candidates:
    return find_candidates(compute_normalizers(logits), NUM_FEW_CANDIDATES)


def sample_rows(logits: Tensor, uniforms: Tensor, **options: Any) -> tuple[list[int], list[float]]:
    selection = select_tokens(find_few_candidates(logits),
                              uniforms, torch.zeros(len(uniforms), dtype=torch.bool), {}, **options)
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
    assert logprobs == pytest.approx(logits.log_softmax(-1)[0, torch.tensor(tokens)].tolist(), rel=1e-6)


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


# -- uniform numbers


def splitmix64_uniform(key: int, index: int) -> float:
    """Return a draw of the published SplitMix64 generator, in integer arithmetic."""
    word = (key + index * 0x9E3779B97F4A7C15) % NUM_WORD_VALUES
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % NUM_WORD_VALUES
    word = (word ^ word >> 27) * 0x94D049BB133111EB % NUM_WORD_VALUES
    return ((word ^ word >> 31) >> 11) / 2**53


def test_a_draw_is_a_hash_of_key_and_index() -> None:
    keys, indices = [0, 1, 7919, 2**63, NUM_WORD_VALUES - 1], [0, 1, 5, 100_000, 2**31]
    assert draw_uniforms(keys, indices).tolist() == [splitmix64_uniform(*pair)
                                                     for pair in zip(keys, indices, strict=True)]


def test_draws_do_not_depend_on_other_rows() -> None:
    keys, indices = list(range(100)), list(range(500, 600))
    alone = [draw_uniforms([key], [index]).item() for key, index in zip(keys, indices, strict=True)]
    assert draw_uniforms(keys, indices).tolist() == alone


def test_draws_are_uniform_along_a_sequence_and_across_sequences() -> None:
    for draws in (draw_uniforms([3] * 20_000, list(range(20_000))), draw_uniforms(list(range(20_000)), [3] * 20_000)):
        counts = torch.histc(draws, 100, 0.0, 1.0)
        assert ((counts - 200) ** 2 / 200).sum() < 149  # chi-square, 99 degrees of freedom, one in a thousand


def test_consecutive_draws_are_uncorrelated() -> None:
    draws = draw_uniforms([3] * 20_000, list(range(20_000))) - 0.5
    assert abs((draws[1:] * draws[:-1]).mean() * 12) < 0.03
