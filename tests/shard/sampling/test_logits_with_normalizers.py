"""Kernels of sampling compared with torch's functions, for all instruction sets of this processor."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from support.model_runs.instruction_sets import AVAILABLE_SETS
from support.model_runs.sampling_sequences import make_random_logits, make_rounded_logits

from shard.native.library import NativeLibrary, load_library
from shard.sampling.logits_with_normalizers import (
    LogitsWithNormalizers,
    compute_normalizers_with_kernels,
    compute_normalizers_with_torch,
    select_with_kernels,
)

library = load_library()
pytestmark = pytest.mark.skipif(library is None, reason="there are no compiled kernels")

# No whole block, one, many, and with a remainder.
VOCABULARY_SIZES = [1, 7, 128, 300, 128 * 70, 128 * 70 + 40]
rounding_steps = some.sampled_from([0.01, 1.0, 100.0])  # from no equal logits to all equal


def get_library(instruction_set: str = AVAILABLE_SETS[0] if AVAILABLE_SETS else "") -> NativeLibrary:
    assert library is not None
    return replace(library, instruction_set=instruction_set)


def as_text(normalized: LogitsWithNormalizers) -> str:
    """Return all that was computed. As text, since NaN does not equal itself."""
    return repr([normalized.block_maxima.tolist(), normalized.best_tokens.tolist(), normalized.maxima.tolist(),
                 normalized.log_sums.tolist()])


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("size", VOCABULARY_SIZES)
@settings(max_examples=20)
@given(seed=some.integers(0, 99), step=rounding_steps)
def test_kernels_normalize_as_torch_does(instruction_set: str, size: int, seed: int, step: float) -> None:
    logits = make_rounded_logits(3, size, seed, step)
    result = compute_normalizers_with_kernels(get_library(instruction_set), logits)
    expected = compute_normalizers_with_torch(logits)
    assert torch.equal(result.block_maxima, expected.block_maxima)
    assert torch.equal(result.best_tokens, expected.best_tokens)
    assert torch.equal(result.maxima, expected.maxima)
    torch.testing.assert_close(result.compute_logprobs(logits).double(), logits.double().log_softmax(-1), rtol=2e-7,
                               atol=2e-7)  # both are below two roundings


def test_torch_normalizes_to_the_bits_of_its_log_softmax() -> None:
    for size in VOCABULARY_SIZES:
        logits = make_random_logits(4, size)
        assert torch.equal(compute_normalizers_with_torch(logits).compute_logprobs(logits), logits.log_softmax(-1))


@pytest.mark.parametrize("size", VOCABULARY_SIZES)
def test_all_instruction_sets_give_the_same_bits(size: int) -> None:
    logits = make_random_logits(5, size)
    assert len({as_text(compute_normalizers_with_kernels(get_library(name), logits)) for name in AVAILABLE_SETS}) == 1


@pytest.mark.usefixtures("num_torch_threads")
@settings(max_examples=20)
@given(size=some.sampled_from(VOCABULARY_SIZES), rows=some.lists(some.integers(0, 7), min_size=1, max_size=20),
       count=some.integers(1, 130))
def test_row_has_the_same_bits_in_any_company(size: int, rows: list[int], count: int) -> None:
    count = min(count, size)
    wide = make_random_logits(8, size + 9)
    wide[3, size // 2], wide[5, size // 3] = float("nan"), float("inf")
    logits = wide[:, :size]  # rows that are further apart than they are long
    together = compute_normalizers_with_kernels(get_library(), logits[rows])
    ids, found = select_with_kernels(get_library(), together, count)
    for place, row in enumerate(rows):
        alone = compute_normalizers_with_kernels(get_library(), logits[row:row + 1])
        assert as_text(together.select_rows(slice(place, place + 1))) == as_text(alone)
        alone_ids, alone_found = select_with_kernels(get_library(), alone, count)
        assert torch.equal(ids[place], alone_ids[0])
        assert repr(found[place].tolist()) == repr(alone_found[0].tolist())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 127, 128 * 70 + 3])
def test_wrong_logit_makes_all_logprobs_of_its_row_nan(wrong: float, place: int) -> None:
    logits = make_random_logits(2, VOCABULARY_SIZES[-1])
    logits[1, place] = wrong
    normalized = compute_normalizers_with_kernels(get_library(), logits)
    assert normalized.log_sums.isfinite().flatten().tolist() == [True, False]
    assert normalized.compute_logprobs(logits)[1].isnan().all()


def test_row_without_finite_logits_has_no_logprob() -> None:
    normalized = compute_normalizers_with_kernels(get_library(), torch.full((1, 300), -torch.inf))
    assert normalized.log_sums.isnan().all()
    assert normalized.best_tokens.tolist() == [0]


@pytest.mark.parametrize("size", VOCABULARY_SIZES)
@settings(max_examples=30)
@given(seed=some.integers(0, 99), step=rounding_steps, count=some.integers(1, 9000),
       order=some.sampled_from([0, 1, -1]))
def test_kernels_select_the_first_of_a_stable_sort(size: int, seed: int, step: float, count: int,
                                                   order: int) -> None:
    count = min(count, size)
    logits = make_rounded_logits(2, size, seed, step)
    if order:  # rising logits replace the candidates all the time
        logits = logits.sort(descending=order < 0).values
    logits[1, ::3] = -torch.inf
    ids, found = select_with_kernels(get_library(), compute_normalizers_with_kernels(get_library(), logits), count)
    for row in range(2):
        assert ids[row].tolist() == logits[row].sort(stable=True, descending=True).indices[:count].tolist()
    assert torch.equal(found, logits.gather(-1, ids))


@pytest.mark.parametrize("count", [1, 65, 1025, VOCABULARY_SIZES[-1]])
def test_ids_of_wrong_rows_are_in_the_vocabulary(count: int) -> None:
    logits = make_random_logits(3, VOCABULARY_SIZES[-1])
    logits[0], logits[1, ::2] = float("nan"), -float("nan")
    logits[2, 5:700] = -float("nan")
    ids, _ = select_with_kernels(get_library(), compute_normalizers_with_kernels(get_library(), logits), count)
    assert all(len(set(row)) == count and set(row) <= set(range(VOCABULARY_SIZES[-1])) for row in ids.tolist())


def test_logits_that_kernels_cannot_read_are_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        compute_normalizers_with_kernels(get_library(), make_random_logits(2, 300).double())
    with pytest.raises(ValueError, match="side by side"):
        compute_normalizers_with_kernels(get_library(), make_random_logits(300, 2).T)
