"""Logits processors compared with those of transformers, or with a plain formula."""

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from shard.sampling.penalties import PROCESSORS, is_processed, process
from shard.state.sequence import Sampling, Sequence
from tests.shard.asking import asking, random_logits

PROMPT, OUTPUT = [3, 3, 5, 5, 5, 8], [5, 8, 8, 11]


def processed(**sampling: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a row of logits before and after processing."""
    logits = random_logits(1, 32)
    before = logits.clone()
    process(logits, [asking(prompt=PROMPT, output=OUTPUT, **sampling)])
    return before[0], logits[0]


def test_every_processor_is_asked_for_by_a_parameter() -> None:
    assert set(PROCESSORS) < set(Sampling.__dataclass_fields__)


@pytest.mark.parametrize("penalty", [1.3, 0.5])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    before, after = processed(repetition_penalty=penalty)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUT]), before[None])
    torch.testing.assert_close(after, expected[0])


@pytest.mark.parametrize("penalty", [1.5, -1.5])
def test_relative_frequency_is_a_share_of_prompt_and_output(penalty: float) -> None:
    before, after = processed(relative_frequency_penalty=penalty)
    for token, count in Counter(PROMPT + OUTPUT).items():
        before[token] -= penalty * count / 10
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize(("frequency", "presence"), [(0.7, 0.0), (0.0, 0.9), (-1.5, 0.6)])
def test_frequency_and_presence_go_by_what_was_generated(frequency: float, presence: float) -> None:
    before, after = processed(frequency_penalty=frequency, presence_penalty=presence)
    for token, count in Counter(OUTPUT).items():
        before[token] -= frequency * count + presence
    torch.testing.assert_close(after, before)


def test_before_the_first_token_there_is_nothing_to_penalise() -> None:
    logits = random_logits(1, 32)
    before = logits.clone()
    process(logits, [asking(prompt=PROMPT, frequency_penalty=1.0, presence_penalty=1.0)])
    assert torch.equal(logits, before)


def test_biases_are_added_to_their_tokens() -> None:
    before, after = processed(biased_tokens=(4, 2), biases=(1.5, -100.0))
    before[4] += 1.5
    before[2] -= 100.0
    assert torch.equal(after, before)


def test_only_allowed_tokens_are_left_and_banned_ones_are_not() -> None:
    before, after = processed(allowed_tokens=(4, 2, 9), banned_tokens=(2, 30))
    assert after.isfinite().nonzero().flatten().tolist() == [4, 9]
    assert torch.equal(after[[4, 9]], before[[4, 9]])


@pytest.mark.parametrize(("wanted", "banned"), [(4, []), (5, [1, 7])])
def test_end_tokens_wait_until_enough_was_generated(wanted: int, banned: list[int]) -> None:
    _, after = processed(min_tokens=wanted, end_tokens=(1, 7))
    assert (after == -torch.inf).nonzero().flatten().tolist() == banned


def test_what_was_seen_is_kept_and_grows_with_the_sequence() -> None:
    sequence = asking(prompt=PROMPT, repetition_penalty=2.0, frequency_penalty=1.0)
    for token in OUTPUT:
        process(random_logits(1, 32), [sequence])
        sequence.tokens.append(token)
    grown, new = random_logits(1, 32), random_logits(1, 32)
    process(grown, [sequence])
    process(new, [asking(prompt=PROMPT, output=OUTPUT, repetition_penalty=2.0, frequency_penalty=1.0)])
    assert torch.equal(grown, new)


def test_who_asks_for_nothing_keeps_nothing() -> None:
    sequence = asking(temperature=0.7, top_p=0.9)
    process(random_logits(1, 32), [sequence])
    assert not sequence.seen
    assert not is_processed(sequence)


def test_rows_of_different_lengths_do_not_touch_each_other() -> None:
    """If rows were padded to one length, token 0 would count as seen in the shorter ones."""
    def sequences() -> list[Sequence]:
        return [asking(prompt=[4] * 50, repetition_penalty=1.5, presence_penalty=0.5, output=[2]), asking(),
                asking(prompt=[6], repetition_penalty=1.2, relative_frequency_penalty=1.0)]

    together = random_logits(3, 32)
    alone = together.clone()
    process(together, sequences())
    for row, sequence in enumerate(sequences()):
        process(alone[row:row + 1], [sequence])
    assert torch.equal(together, alone)
    assert torch.equal(together[2, :6], random_logits(3, 32)[2, :6])
