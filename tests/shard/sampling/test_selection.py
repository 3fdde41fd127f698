"""A choice decided by a few candidates is bit-identical to the choice from the whole vocabulary."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as some
from torch import Tensor

from shard.sampling.candidates import FEW, MANY, Finder, all_of
from shard.sampling.selection import Choice, choices_of
from shard.state.sequence import Sampling
from tests.shard.asking import random_logits

shares = some.sampled_from([0.0, 0.0, 0.02, 0.1, 0.5, 0.9, 0.99, 1.0])
samplings = some.builds(
    Sampling, temperature=some.sampled_from([0.0, 1.0]), top_k=some.sampled_from([0, 0, 1, 5, 64, 65, 66, 4000, 9000]),
    top_p=shares, typical_p=shares, min_p=shares, top_n_tokens=some.sampled_from([0, 1, 5, 70]),
    raw_logprobs=some.booleans())
draws = some.one_of(some.floats(0.0, 1.0, exclude_max=True), some.sampled_from([0.0, 0.5, 1 - 2**-53]))
plain = Sampling(temperature=1.0)


@some.composite
def rows(draw: Any) -> Tensor:
    """Draw a row of logits, flat to sharp, with or without equal logits, with or without masked tokens."""
    size = draw(some.sampled_from([40, 65, 300, 9000]))
    logits = random_logits(1, size, draw(some.integers(0, 99)), draw(some.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0])))
    if step := draw(some.sampled_from([0.0, 0.0, 0.5, 2.0])):
        logits = (logits / step).round() * step
    if allowed := draw(some.sampled_from([0, 0, 1, 3, 64, 65, 66])):
        mask = torch.full_like(logits, -torch.inf)
        mask[0, torch.randperm(size, generator=torch.Generator().manual_seed(allowed))[:allowed]] = 0.0
        logits += mask
    return logits


def from_few(logits: Tensor, sampling: Sampling, draw: float, width: int = FEW) -> tuple[Choice, bool]:
    candidates = Finder(logits.shape[-1]).candidates(logits, logits.log_softmax(-1), width)
    (choice,), (decided,) = choices_of(candidates, [sampling], torch.tensor([draw], dtype=torch.float64))
    return choice, decided


def from_all(logits: Tensor, sampling: Sampling, draw: float) -> Choice:
    (choice,), (decided,) = choices_of(all_of(logits[0], logits.log_softmax(-1)[0]), [sampling],
                                       torch.tensor([draw], dtype=torch.float64))
    assert decided
    return choice


@pytest.mark.slow
@settings(max_examples=400)
@example(torch.zeros(1, 9000), plain, 0.0, FEW)
@example(torch.zeros(1, 300), Sampling(temperature=1.0, top_p=0.1), 0.5, FEW)
@example(torch.zeros(1, 66), Sampling(temperature=1.0, top_k=65), 0.99, FEW)
@given(rows(), samplings, draws, some.sampled_from([FEW, MANY]))
def test_what_few_decide_all_decide(logits: Tensor, sampling: Sampling, draw: float, width: int) -> None:
    choice, decided = from_few(logits, sampling, draw, width)
    assert not decided or choice == from_all(logits, sampling, draw)


@pytest.mark.parametrize("sampling", [
    Sampling(top_n_tokens=5), Sampling(temperature=1.0, top_p=0.9, typical_p=0.9), Sampling(temperature=1.0, top_k=10),
    Sampling(temperature=1.0, min_p=0.05)], ids=str)
def test_sharp_rows_are_decided_by_few(sampling: Sampling) -> None:
    for seed in range(10):
        assert from_few(random_logits(1, 9000, seed, spread=6.0), sampling, 0.5)[1]


@pytest.mark.parametrize("seed", range(5))
def test_greedy_takes_the_best_and_filters_nothing(seed: int) -> None:
    logits = random_logits(1, 300, seed)
    choice, _ = from_few(logits, Sampling(top_k=2, top_p=0.1, min_p=0.9, top_n_tokens=3), 0.999)
    assert choice == from_all(logits, Sampling(top_n_tokens=3), 0.0)
    assert (choice.token, len(choice.top_tokens)) == (logits.argmax().item(), 3)


def test_logprobs_are_among_the_survivors_or_raw() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    (kept,) = from_few(logits, Sampling(temperature=1.0, top_k=2, top_n_tokens=4), 0.9)[:1]
    (raw,) = from_few(logits, Sampling(temperature=1.0, top_k=2, top_n_tokens=4, raw_logprobs=True), 0.9)[:1]
    assert (kept.token, kept.top_tokens) == (1, [0, 1])
    assert kept.top_logprobs == logits[0, :2].log_softmax(-1).tolist()
    assert (raw.token, raw.top_tokens) == (1, [0, 1, 2, 3])
    assert raw.top_logprobs == logits[0].log_softmax(-1).tolist()
