"""Tokens chosen on the device are bit-identical to the sampler's, or their row is marked as not `is_valid`."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from support.model_runs.sampling_sequences import make_random_logits, make_sampling_sequence
from torch import Tensor

from shard.sampling.cuda_graph_sampler import CudaGraphSampler, CudaGraphSamples, can_sample_in_cuda_graph
from shard.sampling.sampler import Sampler
from shard.state.sequence import Sequence

VOCABULARY_SIZE, NUM_ROWS = 9000, 8
fractions = some.sampled_from([0.0, 0.0, 0.1, 0.5, 0.9, 1.0])


def make_rounded_logits(seed: int, scale: float, step: float) -> Tensor:
    """Return random logits; unless `step` is 0 they are rounded to its multiples, so that some are equal."""
    logits = make_random_logits(NUM_ROWS, VOCABULARY_SIZE, seed, scale)
    return (logits / step).round() * step if step else logits


sequence_lists = some.lists(some.builds(make_sampling_sequence, key=some.integers(0, 2**64 - 1),
                                        output=some.lists(some.integers(0, 9), max_size=5).map(tuple),
                                        temperature=some.sampled_from([0.0, 0.0, 1.0, 1.0, 0.1, 0.7, 3.0]),
                                        top_p=fractions, typical_p=fractions, min_p=fractions,
                                        top_k=some.sampled_from([0, 0, 1, 5, 64, 65, 9000]),
                                        raw_logprobs=some.booleans()), min_size=1, max_size=NUM_ROWS)
logit_matrices = some.builds(
    make_rounded_logits, some.integers(0, 99), some.sampled_from([0.0, 0.1, 3.0, 10.0]), some.sampled_from([0.0, 0.5]))


@pytest.fixture(scope="module")
def cuda_graph_sampler() -> CudaGraphSampler:
    return CudaGraphSampler(NUM_ROWS, torch.device("cpu"))


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(VOCABULARY_SIZE)


def sample_on_device(cuda_graph_sampler: CudaGraphSampler, logits: Tensor,
                     sequences: list[Sequence]) -> CudaGraphSamples:
    if not any(sequence.sampling.temperature for sequence in sequences):
        return cuda_graph_sampler.sample_greedy(logits)
    cuda_graph_sampler.write_parameters(sequences)
    return cuda_graph_sampler.sample_random(logits)


@pytest.mark.slow
@settings(max_examples=100)
@given(sequence_lists, logit_matrices)
def test_valid_rows_match_the_sampler(cuda_graph_sampler: CudaGraphSampler, sampler: Sampler, rows: list[Sequence],
                                      logits: Tensor) -> None:
    check_valid_rows(cuda_graph_sampler, sampler, rows, logits)


@pytest.mark.long
@pytest.mark.timeout(600)
@settings(max_examples=1000)
@given(sequence_lists, logit_matrices)
def test_many_valid_rows_match_the_sampler(cuda_graph_sampler: CudaGraphSampler, sampler: Sampler,
                                           rows: list[Sequence], logits: Tensor) -> None:
    check_valid_rows(cuda_graph_sampler, sampler, rows, logits)


def check_valid_rows(cuda_graph_sampler: CudaGraphSampler, sampler: Sampler, rows: list[Sequence],
                     logits: Tensor) -> None:
    """Rows beyond those of the sequences may hold anything."""
    rows = [sequence for sequence in rows if can_sample_in_cuda_graph(sequence)]
    before = logits.clone()
    device_samples = sample_on_device(cuda_graph_sampler, logits, rows)
    assert torch.equal(logits, before)
    expected = sampler.sample(logits[:len(rows)].clone(), rows)
    for row, is_valid in enumerate(device_samples.is_valid.tolist()[:len(rows)]):
        assert not is_valid or (device_samples.tokens[row].item(), device_samples.logprobs[row].item()) == (
            expected.tokens[row], expected.logprobs[row])


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_p": 0.9}])
def test_usual_rows_are_all_valid(cuda_graph_sampler: CudaGraphSampler, options: dict[str, Any]) -> None:
    rows = [make_sampling_sequence(key=number, **options) for number in range(NUM_ROWS)]
    logits = make_random_logits(NUM_ROWS, VOCABULARY_SIZE, 1, 5.0)
    assert sample_on_device(cuda_graph_sampler, logits, rows).is_valid.all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("non_finite", [float("nan"), float("inf"), -float("inf")])
def test_row_with_non_finite_logits_is_not_valid(cuda_graph_sampler: CudaGraphSampler, non_finite: float,
                                                 temperature: float) -> None:
    logits = make_random_logits(3, VOCABULARY_SIZE, 2, 8.0)
    logits[1, 77] = non_finite
    rows = [make_sampling_sequence(key=number, temperature=temperature, top_k=5) for number in range(3)]
    assert sample_on_device(cuda_graph_sampler, logits, rows).is_valid.tolist() == [True, False, True]


def test_row_that_few_candidates_do_not_decide_is_not_valid(cuda_graph_sampler: CudaGraphSampler) -> None:
    """Rows without a filter never need more candidates."""
    rows = [make_sampling_sequence(temperature=1.0, top_p=0.9), make_sampling_sequence(temperature=1.0, key=1),
            make_sampling_sequence(temperature=1.0, top_k=64)]
    assert sample_on_device(cuda_graph_sampler, make_random_logits(3, VOCABULARY_SIZE, 5, 0.1),
                            rows).is_valid.tolist() == [False, True, True]


@pytest.mark.parametrize("options", [
    {"top_n_tokens": 2}, {"repetition_penalty": 1.2}, {"frequency_penalty": -1.0}, {"watermark": True},
    {"min_tokens": 3, "end_tokens": (2,)}, {"banned_tokens": (2,)}, {"biased_tokens": (2,), "biases": (1.0,)},
    {"temperature": 0.5, "raw_logprobs": True}])
def test_other_sampling_options_are_not_sampled_on_the_device(options: dict[str, Any]) -> None:
    assert not can_sample_in_cuda_graph(make_sampling_sequence(**options))
    assert can_sample_in_cuda_graph(make_sampling_sequence())
    constrained = make_sampling_sequence()
    constrained.grammar_id = 1
    assert not can_sample_in_cuda_graph(constrained)
