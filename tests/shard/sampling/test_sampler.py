"""The sampler as a whole: order of processors as in transformers, frequencies of draws, independence of rows."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import inf, nan
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
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

from shard.sampling.sampler import ROWS, Chosen, Sampler
from shard.state.sequence import Sampling, Sequence
from tests.shard.asking import asking, random_logits

SIZE = 128 * 66 + 24  # whole blocks of candidates, and a remainder
SAMPLER = Sampler(SIZE)
WARPERS: dict[str, Any] = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor, "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "typical_p": TypicalLogitsWarper, "min_p": MinPLogitsWarper}


def choose(logits: Tensor, *sequences: Sequence) -> Chosen:
    return Sampler(logits.shape[-1]).choose(logits.clone(), list(sequences))


def warped(logits: Tensor, sequence: Sequence) -> Tensor:
    """Return the logprobs computed by the processors of transformers."""
    asked = {name: getattr(sequence.sampling, name) for name in WARPERS}
    processors = LogitsProcessorList(WARPERS[name](value) for name, value in asked.items() if value)
    return processors(torch.tensor([sequence.tokens]), logits.clone()).log_softmax(-1)[0]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


# -- chosen tokens and returned logprobs


@pytest.mark.slow
@pytest.mark.parametrize("asked", [
    {"temperature": 0.7}, {"temperature": 1.0, "top_k": 20}, {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 0.8, "typical_p": 0.7}, {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 200, "top_p": 0.8, "typical_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.4},
], ids=str)
def test_logprobs_are_those_of_transformers(asked: dict[str, Any]) -> None:
    prompt = list(range(0, SIZE, 2))
    for seed in range(4):
        logits, sequence = random_logits(1, SIZE, seed), asking(prompt=prompt, key=seed, top_n_tokens=5, **asked)
        chosen, expected = choose(logits, sequence), warped(logits, sequence)
        best = expected.topk(min(5, expected.isfinite().sum()))
        told = [*chosen.logprobs, *chosen.top_logprobs[0]]
        torch.testing.assert_close(torch.tensor(told), torch.cat([expected[chosen.tokens], best.values]))
        assert chosen.top_tokens == [best.indices.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [
    {"temperature": 1.0}, {"temperature": 2.5}, {"temperature": 1.5, "top_p": 0.9}, {"temperature": 1.0, "top_k": 6},
    {"temperature": 1.0, "typical_p": 0.8}, {"temperature": 1.0, "min_p": 0.03},
    {"temperature": 1.0, "repetition_penalty": 3.0, "frequency_penalty": 0.1},
], ids=str)
def test_tokens_are_drawn_as_often_as_they_are_likely(asked: dict[str, Any]) -> None:
    logits = random_logits(1, 12, seed=1, spread=1.5)
    count = 2000
    drawn = choose(logits.expand(count, -1), *[asking(prompt=[0, 1], key=key, **asked) for key in range(count)])
    expected = warped(logits, asking(prompt=[0, 1], **asked)).exp() * count
    found = torch.bincount(torch.tensor(drawn.tokens), minlength=12)
    assert not found[expected == 0].any()
    likely = expected > 0
    assert ((found - expected)[likely] ** 2 / expected[likely]).sum() < 31.3  # one in a thousand at 11 degrees


def test_a_draw_depends_on_key_and_index_only() -> None:
    logits = torch.zeros(1, SIZE)
    first = choose(logits, asking(prompt=[1, 2], output=[3], key=9, temperature=1.0)).tokens
    assert choose(logits, asking(prompt=[7, 7, 7], key=9, temperature=1.0)).tokens == first
    assert choose(logits, asking(prompt=[7, 7, 7], key=8, temperature=1.0)).tokens != first
    assert choose(logits, asking(prompt=[7, 7], key=9, temperature=1.0)).tokens != first


def test_temperature_zero_takes_the_best_whatever_else_is_asked() -> None:
    logits = random_logits(4, SIZE)
    filtered = asking(top_k=2, top_p=0.1, typical_p=0.1, min_p=0.9)
    chosen = choose(logits, *[filtered] * 4)
    assert chosen == choose(logits, *[asking()] * 4)
    assert chosen.tokens == logits.argmax(-1).tolist()
    assert chosen.logprobs == logits.log_softmax(-1).amax(-1).tolist()


def test_the_coldest_temperature_is_greedy() -> None:
    logits = random_logits(4, SIZE) * 1e6
    chosen = choose(logits, *[asking(key=key, temperature=1e-38) for key in range(4)])
    assert (chosen.tokens, chosen.finite) == (logits.argmax(-1).tolist(), [True] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [40, 1000, SIZE])
def test_equal_logits_go_to_the_lowest_id(size: int) -> None:
    logits = torch.zeros(3, size)
    logits[1, [5, 33, 21]] = 1.0
    logits[2, -70:] = 1.0
    greedy = choose(logits, *[asking(top_n_tokens=3)] * 3)
    first = max(size - 70, 0)
    assert greedy.top_tokens == [[0, 1, 2], [5, 21, 33], [first, first + 1, first + 2]]
    assert greedy.tokens == choose(logits, *[asking()] * 3).tokens == [0, 5, first]
    drawn = choose(logits.repeat(20, 1), *[asking(key=key, temperature=1.0, top_k=2) for key in range(60)])
    assert [set(drawn.tokens[row::3]) for row in range(3)] == [{0, 1}, {5, 21}, {first, first + 1}]


def test_raw_logprobs_are_those_of_the_model() -> None:
    logits = random_logits(3, SIZE)
    asked = {"temperature": 0.5, "top_k": 3, "repetition_penalty": 1.7, "raw_logprobs": True, "key": 5}
    raw = choose(logits, asking(top_n_tokens=4, **asked), asking(key=1, temperature=0.5), asking(**asked))
    own = choose(logits, *[asking(**asked | {"raw_logprobs": False})] * 3)
    logprobs = logits.log_softmax(-1)
    assert (raw.tokens[0], raw.tokens[2]) == (own.tokens[0], own.tokens[2])
    assert (raw.logprobs[0], raw.logprobs[2]) == (logprobs[0, raw.tokens[0]], logprobs[2, raw.tokens[2]])
    assert (raw.top_tokens[0], raw.top_tokens[2]) == (logits[0].topk(4).indices.tolist(), [])
    assert raw.top_logprobs[0] == logprobs[0].topk(4).values.tolist()


def test_only_what_can_be_chosen_is_told() -> None:
    chosen = choose(random_logits(1, SIZE), asking(temperature=0.7, allowed_tokens=(9, 4), top_n_tokens=5))
    assert sorted(chosen.top_tokens[0]) == [4, 9]
    assert set(chosen.tokens) <= {4, 9}


def test_a_single_allowed_token_is_chosen_for_certain() -> None:
    chosen = choose(random_logits(1, SIZE), asking(temperature=2.0, top_p=0.5, allowed_tokens=(SIZE - 1,)))
    assert (chosen.tokens, chosen.logprobs, chosen.finite) == ([SIZE - 1], [0.0], [True])


def test_prompt_logprobs_are_those_of_the_targets_however_rows_are_cut() -> None:
    logits, targets = random_logits(ROWS + 9, SIZE), list(range(ROWS + 9))
    found = SAMPLER.prompt_logprobs(logits, targets)
    assert found == logits.log_softmax(-1)[targets, targets].tolist()
    pieces = [SAMPLER.prompt_logprobs(logits[s:s + 7], targets[s:s + 7]) for s in range(0, len(targets), 7)]
    assert list(chain(*pieces)) == found


# -- failing rows


@pytest.mark.parametrize("wrong", [nan, inf, -inf])
@pytest.mark.parametrize("asked", [{}, {"temperature": 1.0}, {"top_n_tokens": 3, "raw_logprobs": True}], ids=str)
def test_logits_that_are_no_numbers_fail_their_row_only(wrong: float, asked: dict[str, Any]) -> None:
    logits = random_logits(3, SIZE)
    sound = choose(logits, *[asking(**asked)] * 3)
    logits[1, 17] = wrong
    chosen = choose(logits, *[asking(**asked)] * 3)
    assert chosen.finite == [True, False, True]
    assert [rows_of(chosen)[0], rows_of(chosen)[2]] == [rows_of(sound)[0], rows_of(sound)[2]]
    assert 0 <= chosen.tokens[1] < SIZE


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_who_leaves_nothing_to_choose_fails(temperature: float) -> None:
    nothing = asking(temperature=temperature, allowed_tokens=(3,), banned_tokens=(3,), raw_logprobs=True)
    assert choose(random_logits(2, SIZE), nothing, asking()).finite == [False, True]


# -- the same row, the same bits


def rows_of(chosen: Chosen) -> list[tuple[Any, ...]]:
    """Return the result of each row. A row with NaN logits fails: its token is never used, so not compared."""
    tokens = [token if finite else None for token, finite in zip(chosen.tokens, chosen.finite, strict=True)]
    return list(zip(tokens, chosen.logprobs, chosen.top_tokens, chosen.top_logprobs, chosen.finite, strict=True))


shares = some.sampled_from([0.0, 0.0, 0.0, 0.3, 0.9, 0.99])
signed = some.sampled_from([0.0, 0.0, 0.0, 0.4, -1.0])
few_tokens = some.sampled_from([(), (), (), (1,), (0, 7, 8400), tuple(range(100, 300))])
samplings = some.builds(
    Sampling, temperature=some.sampled_from([0.0, 0.0, 0.7, 1.0, 1.9]), top_k=some.sampled_from([0, 0, 1, 8, 65, 5000]),
    top_p=shares, typical_p=shares, min_p=shares, repetition_penalty=some.sampled_from([0.0, 0.0, 1.2]),
    relative_frequency_penalty=signed, frequency_penalty=signed, presence_penalty=signed, watermark=some.booleans(),
    top_n_tokens=some.sampled_from([0, 0, 3, 66]), raw_logprobs=some.booleans(),
    min_tokens=some.sampled_from([0, 2, 9]), end_tokens=few_tokens, banned_tokens=few_tokens,
    allowed_tokens=some.sampled_from([(), (), (5, 6, 8000), tuple(range(0, SIZE, 3))]))


@some.composite
def companies(draw: Any) -> tuple[Tensor, list[Sequence]]:
    sequences = [asking(prompt=draw(some.lists(some.integers(0, SIZE - 1), min_size=1, max_size=9)),
                        output=draw(some.lists(some.integers(0, 9), max_size=5)), key=draw(some.integers(0, 2**64 - 1)))
                 for _ in range(draw(some.integers(2, 4)))]
    asked = [replace(sequence, sampling=draw(samplings), seen={}) for sequence in sequences]
    logits = random_logits(len(asked), SIZE, draw(some.integers(0, 99)), draw(some.sampled_from([0.0, 0.3, 3.0, 9.0])))
    for row in range(len(asked)):
        logits[row, 5] = draw(some.sampled_from([0.0, 0.0, 0.0, 20.0, nan]))
    return logits, asked


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@settings(max_examples=25)
@given(companies(), some.randoms(use_true_random=False))
def test_a_row_gets_the_same_in_any_company(company: tuple[Tensor, list[Sequence]], dice: Any) -> None:
    logits, sequences = company
    alone = [choose(logits[row:row + 1], sequence) for row, sequence in enumerate(sequences)]
    order = dice.choices(range(len(sequences)), k=dice.choice([2, 5, ROWS + 2]))
    together = choose(logits[order], *[sequences[row] for row in order])
    # Compared as text: unused entries may be NaN, which does not equal itself.
    assert repr(rows_of(together)) == repr([rows_of(alone[row])[0] for row in order])


def test_logits_may_be_a_view_of_wider_rows() -> None:
    padded = random_logits(3, SIZE + 100)
    sequences = [asking(top_n_tokens=3), asking(key=3, temperature=1.0, top_p=0.9), asking(repetition_penalty=2.0)]
    narrow = choose(padded[:, :SIZE].contiguous(), *sequences)
    assert SAMPLER.choose(padded[:, :SIZE], sequences) == narrow
