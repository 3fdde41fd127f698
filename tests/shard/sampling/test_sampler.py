"""The sampler as a whole: order of processors as in transformers, frequencies of draws, independence of rows."""

from dataclasses import replace
from itertools import chain
from math import inf, nan
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from support.model_runs.sampling_sequences import make_random_logits, make_sampling_sequence
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from shard.sampling.sampler import MAX_ROWS_AT_ONCE, Sampler, SamplerOutput
from shard.state.sequence import SamplingParams, Sequence

VOCABULARY_SIZE = 128 * 66 + 24  # whole blocks of candidates, and a remainder
SAMPLER = Sampler(VOCABULARY_SIZE)
TRANSFORMERS_PROCESSORS: dict[str, Any] = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor, "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "typical_p": TypicalLogitsWarper, "min_p": MinPLogitsWarper}


def sample(logits: Tensor, *sequences: Sequence) -> SamplerOutput:
    return Sampler(logits.shape[-1]).sample(logits.clone(), list(sequences))


def approximately(values: Any) -> Any:
    """Return what equals these logprobs but for rounding."""
    return pytest.approx(values, rel=1e-6, abs=1e-6)


def compute_transformers_logprobs(logits: Tensor, sequence: Sequence) -> Tensor:
    """Return the logprobs computed by the processors of transformers."""
    settings_by_name = {name: getattr(sequence.sampling, name) for name in TRANSFORMERS_PROCESSORS}
    processors = LogitsProcessorList(TRANSFORMERS_PROCESSORS[name](value) for name, value in settings_by_name.items()
                                     if value)
    return processors(torch.tensor([sequence.tokens]), logits.clone()).log_softmax(-1)[0]


# -- chosen tokens and returned logprobs


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("options", [
    {"temperature": 0.7}, {"temperature": 1.0, "top_k": 20}, {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 0.8, "typical_p": 0.7}, {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 200, "top_p": 0.8, "typical_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.4},
], ids=str)
def test_logprobs_match_transformers(options: dict[str, Any]) -> None:
    prompt = list(range(0, VOCABULARY_SIZE, 2))
    for seed in range(4):
        logits = make_random_logits(1, VOCABULARY_SIZE, seed)
        sequence = make_sampling_sequence(prompt=prompt, key=seed, top_n_tokens=5, **options)
        chosen, expected = sample(logits, sequence), compute_transformers_logprobs(logits, sequence)
        best = expected.topk(min(5, expected.isfinite().sum()))
        reported_logprobs = [*chosen.logprobs, *chosen.top_logprobs[0]]
        torch.testing.assert_close(torch.tensor(reported_logprobs), torch.cat([expected[chosen.tokens], best.values]))
        assert chosen.top_tokens == [best.indices.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"temperature": 1.0}, {"temperature": 2.5}, {"temperature": 1.5, "top_p": 0.9}, {"temperature": 1.0, "top_k": 6},
    {"temperature": 1.0, "typical_p": 0.8}, {"temperature": 1.0, "min_p": 0.03},
    {"temperature": 1.0, "repetition_penalty": 3.0, "frequency_penalty": 0.1},
], ids=str)
def test_token_frequencies_match_their_probabilities(options: dict[str, Any]) -> None:
    logits = make_random_logits(1, 12, seed=1, scale=1.5)
    count = 2000
    drawn = sample(logits.expand(count, -1),
                   *[make_sampling_sequence(prompt=[0, 1], key=key, **options) for key in range(count)])
    expected = compute_transformers_logprobs(logits, make_sampling_sequence(prompt=[0, 1], **options)).exp() * count
    counts = torch.bincount(torch.tensor(drawn.tokens), minlength=12)
    assert not counts[expected == 0].any()
    likely = expected > 0
    assert ((counts - expected)[likely] ** 2 / expected[likely]).sum() < 31.3  # one in a thousand at 11 degrees


def test_a_draw_depends_on_key_and_index_only() -> None:
    logits = torch.zeros(1, VOCABULARY_SIZE)
    first = sample(logits, make_sampling_sequence(prompt=[1, 2], output=[3], key=9, temperature=1.0)).tokens
    assert sample(logits, make_sampling_sequence(prompt=[7, 7, 7], key=9, temperature=1.0)).tokens == first
    assert sample(logits, make_sampling_sequence(prompt=[7, 7, 7], key=8, temperature=1.0)).tokens != first
    assert sample(logits, make_sampling_sequence(prompt=[7, 7], key=9, temperature=1.0)).tokens != first


@pytest.mark.usefixtures("kernels_or_torch")
def test_temperature_zero_is_greedy_whatever_the_filters() -> None:
    logits = make_random_logits(4, VOCABULARY_SIZE)
    filtered = make_sampling_sequence(top_k=2, top_p=0.1, typical_p=0.1, min_p=0.9)
    chosen = sample(logits, *[filtered] * 4)
    assert chosen == sample(logits, *[make_sampling_sequence()] * 4)
    assert chosen.tokens == logits.argmax(-1).tolist()
    assert chosen.logprobs == approximately(logits.double().log_softmax(-1).amax(-1).tolist())


def test_lowest_temperature_is_greedy() -> None:
    logits = make_random_logits(4, VOCABULARY_SIZE) * 1e6
    chosen = sample(logits, *[make_sampling_sequence(key=key, temperature=1e-38) for key in range(4)])
    assert (chosen.tokens, chosen.is_finite) == (logits.argmax(-1).tolist(), [True] * 4)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("size", [40, 1000, VOCABULARY_SIZE])
def test_lowest_id_wins_among_equal_logits(size: int) -> None:
    logits = torch.zeros(3, size)
    logits[1, [5, 33, 21]] = 1.0
    logits[2, -70:] = 1.0
    greedy = sample(logits, *[make_sampling_sequence(top_n_tokens=3)] * 3)
    first = max(size - 70, 0)
    assert greedy.top_tokens == [[0, 1, 2], [5, 21, 33], [first, first + 1, first + 2]]
    assert greedy.tokens == sample(logits, *[make_sampling_sequence()] * 3).tokens == [0, 5, first]
    drawn = sample(logits.repeat(20, 1),
                   *[make_sampling_sequence(key=key, temperature=1.0, top_k=2) for key in range(60)])
    assert [set(drawn.tokens[row::3]) for row in range(3)] == [{0, 1}, {5, 21}, {first, first + 1}]


@pytest.mark.usefixtures("kernels_or_torch")
def test_raw_logprobs_are_those_of_the_model() -> None:
    logits = make_random_logits(3, VOCABULARY_SIZE)
    options = {"temperature": 0.5, "top_k": 3, "repetition_penalty": 1.7, "raw_logprobs": True, "key": 5}
    raw = sample(logits, make_sampling_sequence(top_n_tokens=4, **options),
                 make_sampling_sequence(key=1, temperature=0.5), make_sampling_sequence(**options))
    own = sample(logits, *[make_sampling_sequence(**options | {"raw_logprobs": False})] * 3)
    logprobs = logits.double().log_softmax(-1)
    assert (raw.tokens[0], raw.tokens[2]) == (own.tokens[0], own.tokens[2])
    assert [raw.logprobs[0], raw.logprobs[2]] == approximately([logprobs[0, raw.tokens[0]].item(),
                                                                logprobs[2, raw.tokens[2]].item()])
    assert (raw.top_tokens[0], raw.top_tokens[2]) == (logits[0].topk(4).indices.tolist(), [])
    assert raw.top_logprobs[0] == approximately(logprobs[0].topk(4).values.tolist())


@pytest.mark.usefixtures("kernels_or_torch")
def test_top_tokens_are_only_those_that_can_be_sampled() -> None:
    chosen = sample(make_random_logits(1, VOCABULARY_SIZE),
                    make_sampling_sequence(temperature=0.7, allowed_tokens=(9, 4), top_n_tokens=5))
    assert sorted(chosen.top_tokens[0]) == [4, 9]
    assert set(chosen.tokens) <= {4, 9}


def test_single_allowed_token_is_sampled_with_certainty() -> None:
    chosen = sample(make_random_logits(1, VOCABULARY_SIZE),
                    make_sampling_sequence(temperature=2.0, top_p=0.5, allowed_tokens=(VOCABULARY_SIZE - 1,)))
    assert (chosen.tokens, chosen.logprobs, chosen.is_finite) == ([VOCABULARY_SIZE - 1], [0.0], [True])


@pytest.mark.usefixtures("kernels_or_torch")
def test_prompt_logprobs_do_not_depend_on_how_rows_are_split() -> None:
    logits, targets = make_random_logits(MAX_ROWS_AT_ONCE + 9, VOCABULARY_SIZE), list(range(MAX_ROWS_AT_ONCE + 9))
    logprobs, top_tokens, top_logprobs = SAMPLER.compute_prompt_logprobs(logits, targets, 3)
    assert SAMPLER.compute_prompt_logprobs(logits, targets) == (logprobs, [], [])
    exact = logits.double().log_softmax(-1)
    assert logprobs == approximately(exact[targets, targets].tolist())
    best = exact.topk(3)
    assert top_tokens == best.indices.tolist()
    assert [*chain(*top_logprobs)] == approximately(best.values.flatten().tolist())
    pieces = [SAMPLER.compute_prompt_logprobs(logits[s:s + 7], targets[s:s + 7], 3) for s in range(0, len(targets), 7)]
    assert [list(chain(*columns)) for columns in zip(*pieces, strict=True)] == [logprobs, top_tokens, top_logprobs]


# -- failing rows


@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("wrong", [nan, inf, -inf])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"top_n_tokens": 3, "raw_logprobs": True}], ids=str)
def test_non_finite_logits_fail_only_their_own_row(wrong: float, options: dict[str, Any]) -> None:
    logits = make_random_logits(3, VOCABULARY_SIZE)
    expected = sample(logits, *[make_sampling_sequence(**options)] * 3)
    logits[1, 17] = wrong
    chosen = sample(logits, *[make_sampling_sequence(**options)] * 3)
    assert chosen.is_finite == [True, False, True]
    assert [split_into_rows(chosen)[0],
            split_into_rows(chosen)[2]] == [split_into_rows(expected)[0], split_into_rows(expected)[2]]
    assert 0 <= chosen.tokens[1] < VOCABULARY_SIZE


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_allowed_tokens_fails(temperature: float) -> None:
    nothing = make_sampling_sequence(temperature=temperature, allowed_tokens=(3,), banned_tokens=(3,),
                                     raw_logprobs=True)
    assert sample(make_random_logits(2, VOCABULARY_SIZE), nothing, make_sampling_sequence()).is_finite == [False, True]


# -- the same row, the same bits


def split_into_rows(chosen: SamplerOutput) -> list[tuple[Any, ...]]:
    """Return the result of each row. A row with NaN logits fails: its token is never used, so not compared."""
    tokens = [token if finite else None for token, finite in zip(chosen.tokens, chosen.is_finite, strict=True)]
    return list(zip(tokens, chosen.logprobs, chosen.top_tokens, chosen.top_logprobs, chosen.is_finite, strict=True))


fractions = some.sampled_from([0.0, 0.0, 0.0, 0.3, 0.9, 0.99])
signed_penalties = some.sampled_from([0.0, 0.0, 0.0, 0.4, -1.0])
token_lists = some.sampled_from([(), (), (), (1,), (0, 7, 8400), tuple(range(100, 300))])
sampling_params = some.builds(
    SamplingParams, temperature=some.sampled_from([0.0, 0.0, 0.7, 1.0, 1.9]),
    top_k=some.sampled_from([0, 0, 1, 8, 65, 5000]),
    top_p=fractions, typical_p=fractions, min_p=fractions, repetition_penalty=some.sampled_from([0.0, 0.0, 1.2]),
    relative_frequency_penalty=signed_penalties, frequency_penalty=signed_penalties, presence_penalty=signed_penalties,
    watermark=some.booleans(),
    top_n_tokens=some.sampled_from([0, 0, 3, 66]), raw_logprobs=some.booleans(),
    min_tokens=some.sampled_from([0, 2, 9]), end_tokens=token_lists, banned_tokens=token_lists,
    allowed_tokens=some.sampled_from([(), (), (5, 6, 8000), tuple(range(0, VOCABULARY_SIZE, 3))]))


@some.composite
def batches(draw: Any) -> tuple[Tensor, list[Sequence]]:
    sequences = [
        make_sampling_sequence(prompt=draw(some.lists(some.integers(0, VOCABULARY_SIZE - 1), min_size=1, max_size=9)),
                               output=draw(some.lists(some.integers(0, 9), max_size=5)),
                               key=draw(some.integers(0, 2**64 - 1))) for _ in range(draw(some.integers(2, 4)))]
    sequences = [replace(sequence, sampling=draw(sampling_params), token_counts={}) for sequence in sequences]
    logits = make_random_logits(len(sequences), VOCABULARY_SIZE, draw(some.integers(0, 99)),
                                draw(some.sampled_from([0.0, 0.3, 3.0, 9.0])))
    for row in range(len(sequences)):
        logits[row, 5] = draw(some.sampled_from([0.0, 0.0, 0.0, 20.0, nan]))
    return logits, sequences


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_or_torch", "num_torch_threads")
@settings(max_examples=25)
@given(batches(), some.randoms(use_true_random=False))
def test_result_does_not_depend_on_other_rows(batch: tuple[Tensor, list[Sequence]], rng: Any) -> None:
    logits, sequences = batch
    alone = [sample(logits[row:row + 1], sequence) for row, sequence in enumerate(sequences)]
    order = rng.choices(range(len(sequences)), k=rng.choice([2, 5, MAX_ROWS_AT_ONCE + 2]))
    batched = sample(logits[order], *[sequences[row] for row in order])
    # Compared as text: unused entries may be NaN, which does not equal itself.
    assert repr(split_into_rows(batched)) == repr([split_into_rows(alone[row])[0] for row in order])


def test_logits_may_be_a_view_of_wider_rows() -> None:
    padded = make_random_logits(3, VOCABULARY_SIZE + 100)
    sequences = [make_sampling_sequence(top_n_tokens=3), make_sampling_sequence(key=3, temperature=1.0, top_p=0.9),
                 make_sampling_sequence(repetition_penalty=2.0)]
    narrow = sample(padded[:, :VOCABULARY_SIZE].contiguous(), *sequences)
    assert SAMPLER.sample(padded[:, :VOCABULARY_SIZE], sequences) == narrow
