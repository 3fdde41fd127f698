"""Logits processors compared with those of transformers, or with a plain formula."""

from collections import Counter
from typing import Any

import pytest
import torch
from support.model_runs.sampling_sequences import make_random_logits, make_sampling_sequence
from transformers import RepetitionPenaltyLogitsProcessor

from shard.sampling.logits_processors import (
    PROCESSORS,
    apply_watermark,
    choose_green_tokens,
    needs_processing,
    process_logits,
)
from shard.state.sequence import SamplingParams, Sequence

PROMPT_TOKENS, OUTPUT_TOKENS = [3, 3, 5, 5, 5, 8], [5, 8, 8, 11]


def process_random_logits(**sampling: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a row of logits before and after processing."""
    logits = make_random_logits(1, 32)
    before = logits.clone()
    process_logits(logits, [make_sampling_sequence(prompt=PROMPT_TOKENS, output=OUTPUT_TOKENS, **sampling)])
    return before[0], logits[0]


def test_every_processor_has_a_sampling_parameter() -> None:
    assert set(PROCESSORS) < set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize("penalty", [1.3, 0.5])
def test_repetition_penalty_matches_transformers(penalty: float) -> None:
    before, after = process_random_logits(repetition_penalty=penalty)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT_TOKENS + OUTPUT_TOKENS]), before[None])
    torch.testing.assert_close(after, expected[0])


@pytest.mark.parametrize("penalty", [1.5, -1.5])
def test_relative_frequency_penalty_counts_prompt_and_output(penalty: float) -> None:
    before, after = process_random_logits(relative_frequency_penalty=penalty)
    for token, count in Counter(PROMPT_TOKENS + OUTPUT_TOKENS).items():
        before[token] -= penalty * count / 10
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize(("frequency", "presence"), [(0.7, 0.0), (0.0, 0.9), (-1.5, 0.6)])
def test_frequency_and_presence_penalties_count_the_output_only(frequency: float, presence: float) -> None:
    before, after = process_random_logits(frequency_penalty=frequency, presence_penalty=presence)
    for token, count in Counter(OUTPUT_TOKENS).items():
        before[token] -= frequency * count + presence
    torch.testing.assert_close(after, before)


def test_output_penalties_change_nothing_before_the_first_token() -> None:
    logits = make_random_logits(1, 32)
    before = logits.clone()
    process_logits(logits, [make_sampling_sequence(prompt=PROMPT_TOKENS, frequency_penalty=1.0, presence_penalty=1.0)])
    assert torch.equal(logits, before)


def test_biases_are_added_to_their_tokens() -> None:
    before, after = process_random_logits(biased_tokens=(4, 2), biases=(1.5, -100.0))
    before[4] += 1.5
    before[2] -= 100.0
    assert torch.equal(after, before)


def test_only_allowed_tokens_that_are_not_banned_remain() -> None:
    before, after = process_random_logits(allowed_tokens=(4, 2, 9), banned_tokens=(2, 30))
    assert after.isfinite().nonzero().flatten().tolist() == [4, 9]
    assert torch.equal(after[[4, 9]], before[[4, 9]])


@pytest.mark.parametrize(("min_tokens", "banned"), [(4, []), (5, [1, 7])])
def test_end_tokens_are_banned_until_min_tokens(min_tokens: int, banned: list[int]) -> None:
    _, after = process_random_logits(min_tokens=min_tokens, end_tokens=(1, 7))
    assert (after == -torch.inf).nonzero().flatten().tolist() == banned


def test_token_counts_are_kept_and_updated_with_the_sequence() -> None:
    sequence = make_sampling_sequence(prompt=PROMPT_TOKENS, repetition_penalty=2.0, frequency_penalty=1.0)
    for token in OUTPUT_TOKENS:
        process_logits(make_random_logits(1, 32), [sequence])
        sequence.tokens.append(token)
    grown, new = make_random_logits(1, 32), make_random_logits(1, 32)
    process_logits(grown, [sequence])
    process_logits(new, [make_sampling_sequence(prompt=PROMPT_TOKENS, output=OUTPUT_TOKENS, repetition_penalty=2.0,
                                                frequency_penalty=1.0)])
    assert torch.equal(grown, new)


def test_sequence_without_penalties_keeps_no_token_counts() -> None:
    sequence = make_sampling_sequence(temperature=0.7, top_p=0.9)
    process_logits(make_random_logits(1, 32), [sequence])
    assert not sequence.token_counts
    assert not needs_processing(sequence)


def test_rows_of_different_lengths_do_not_affect_each_other() -> None:
    """If rows were padded to one length, token 0 would count as seen in the shorter ones."""
    def make_sequences() -> list[Sequence]:
        return [make_sampling_sequence(prompt=[4] * 50, repetition_penalty=1.5, presence_penalty=0.5, output=[2]),
                make_sampling_sequence(),
                make_sampling_sequence(prompt=[6], repetition_penalty=1.2, relative_frequency_penalty=1.0)]

    batched = make_random_logits(3, 32)
    alone = batched.clone()
    process_logits(batched, make_sequences())
    for row, sequence in enumerate(make_sequences()):
        process_logits(alone[row:row + 1], [sequence])
    assert torch.equal(batched, alone)
    assert torch.equal(batched[2, :6], make_random_logits(3, 32)[2, :6])


# -- the watermark


def compute_detector_green_tokens(previous_token: int, vocabulary_size: int) -> set[int]:
    torch.manual_seed(15485863 * previous_token)
    return set(torch.randperm(vocabulary_size)[:vocabulary_size // 2].tolist())


def test_green_tokens_are_those_that_detectors_look_for() -> None:
    with torch.random.fork_rng():
        for previous in (0, 1, 77, 151_000):
            assert set(choose_green_tokens(previous, 1001).tolist()) == compute_detector_green_tokens(previous, 1001)


def test_each_row_is_watermarked_by_its_own_last_token() -> None:
    logits = make_random_logits(3, 512)
    before = logits.clone()
    apply_watermark(logits, [0, 2],
                    [make_sampling_sequence(prompt=[5, 9]), make_sampling_sequence(prompt=[1] * 40, output=[7])])
    for row, previous in ((0, 9), (2, 7)):
        boosted = set(((logits - before)[row] > 1.9).nonzero().flatten().tolist())
        assert boosted == set(choose_green_tokens(previous, 512).tolist())
    assert torch.equal(logits[1], before[1])


def test_green_lists_of_different_tokens_overlap_by_chance_only() -> None:
    lists = [set(choose_green_tokens(previous, 2000).tolist()) for previous in range(20)]
    shared = [len(a & b) for a in lists for b in lists if a is not b]
    assert 490 < sum(shared) / len(shared) < 510
    assert min(shared) > 430
    assert max(shared) < 570
