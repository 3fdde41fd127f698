"""Tokens chosen on the device are bit-identical to the sampler's, or their row is marked as not `fine`."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from shard.sampling.device_sampler import Found, Picker, is_drawn, is_plain
from shard.sampling.sampler import Sampler
from shard.state.sequence import Sequence
from tests.shard.asking import asking, random_logits

SIZE, ROWS = 9000, 8
shares = some.sampled_from([0.0, 0.0, 0.1, 0.5, 0.9, 1.0])


def drawn_logits(seed: int, spread: float, step: float) -> Tensor:
    """Return random logits; unless `step` is 0 they are rounded to its multiples, so that some are equal."""
    logits = random_logits(ROWS, SIZE, seed, spread)
    return (logits / step).round() * step if step else logits


sequences = some.lists(some.builds(
    asking, key=some.integers(0, 2**64 - 1), output=some.lists(some.integers(0, 9), max_size=5).map(tuple),
    temperature=some.sampled_from([0.0, 0.0, 1.0, 1.0, 0.1, 0.7, 3.0]), top_p=shares, typical_p=shares, min_p=shares,
    top_k=some.sampled_from([0, 0, 1, 5, 64, 65, 9000]), raw_logprobs=some.booleans()), min_size=1, max_size=ROWS)
numbers = some.builds(
    drawn_logits, some.integers(0, 99), some.sampled_from([0.0, 0.1, 3.0, 10.0]), some.sampled_from([0.0, 0.5]))


@pytest.fixture(scope="module")
def picker() -> Picker:
    return Picker(ROWS, SIZE, torch.device("cpu"))


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler(SIZE)


def found(picker: Picker, logits: Tensor, rows: list[Sequence]) -> Found:
    if not is_drawn(rows):
        return picker.best(logits)
    picker.write(rows, [len(sequence.tokens) for sequence in rows])
    return picker.drawn(logits)


@pytest.mark.slow
@settings(max_examples=300)
@given(sequences, numbers)
def test_what_is_fine_is_what_the_sampler_says(picker: Picker, sampler: Sampler, rows: list[Sequence],
                                               logits: Tensor) -> None:
    """Rows beyond those of the sequences may hold anything."""
    rows = [sequence for sequence in rows if is_plain(sequence)]
    before = logits.clone()
    ours = found(picker, logits, rows)
    assert torch.equal(logits, before)
    theirs = sampler.choose(logits[:len(rows)].clone(), rows)
    for row, fine in enumerate(ours.fine.tolist()[:len(rows)]):
        assert not fine or (ours.tokens[row].item(), ours.logprobs[row].item()) == (
            theirs.tokens[row], theirs.logprobs[row])


@pytest.mark.parametrize("asked", [{}, {"temperature": 0.7, "top_p": 0.9}])
def test_few_rows_have_to_be_looked_at(picker: Picker, asked: dict[str, Any]) -> None:
    rows = [asking(key=number, **asked) for number in range(ROWS)]
    assert found(picker, random_logits(ROWS, SIZE, 1, 5.0), rows).fine.all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spoiled", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_not_fine(picker: Picker, spoiled: float, temperature: float) -> None:
    logits = random_logits(3, SIZE, 2, 8.0)
    logits[1, 77] = spoiled
    rows = [asking(key=number, temperature=temperature, top_k=5) for number in range(3)]
    assert found(picker, logits, rows).fine.tolist() == [True, False, True]


def test_what_few_candidates_do_not_decide_is_not_fine(picker: Picker) -> None:
    """Rows without a filter never need more candidates."""
    rows = [asking(temperature=1.0, top_p=0.9), asking(temperature=1.0, key=1), asking(temperature=1.0, top_k=64)]
    assert found(picker, random_logits(3, SIZE, 5, 0.1), rows).fine.tolist() == [False, True, True]


@pytest.mark.parametrize("asked", [
    {"top_n_tokens": 2}, {"repetition_penalty": 1.2}, {"frequency_penalty": -1.0}, {"watermark": True},
    {"min_tokens": 3, "end_tokens": (2,)}, {"banned_tokens": (2,)}, {"biased_tokens": (2,), "biases": (1.0,)},
    {"temperature": 0.5, "raw_logprobs": True}])
def test_who_asks_for_more_is_not_plain(asked: dict[str, Any]) -> None:
    assert not is_plain(asking(**asked))
    assert is_plain(asking())
    constrained = asking()
    constrained.grammar = 1
    assert not is_plain(constrained)
