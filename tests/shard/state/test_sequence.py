from collections import Counter
from dataclasses import fields
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from support.shards.protocol_messages import SequenceRow, make_embed, make_sequences

from shard.errors import MalformedMessage
from shard.pb import shard_pb2 as pb
from shard.state.sequence import (
    ModelLimits,
    PoolingText,
    SamplingParams,
    TokenOccurrences,
    parse_column,
    parse_pooling_texts,
    parse_sampling_params,
    parse_sequences,
    split_by_counts,
)

FLOAT_PARAMETERS = [field.name for field in pb.Sampling.DESCRIPTOR.fields if field.type == field.TYPE_FLOAT]
MESSAGE_LIMITS = ModelLimits(vocabulary_size=512, max_positions=64, tokens_per_step=1, mixed_steps=True)


def test_sampling_params_have_the_fields_of_the_protocol() -> None:
    """A field that holds a tuple is a ragged column, with its counts before it."""
    columns = [[f"num_{field.name}", field.name] if field.default == () else [field.name]
               for field in fields(SamplingParams)]
    assert list(chain(*columns)) == [field.name for field in pb.Sampling.DESCRIPTOR.fields]


def test_an_empty_column_is_a_column_of_defaults() -> None:
    assert parse_column([], 3, 9, "keys") == [9, 9, 9]
    assert parse_column([1, 2], 2, 9, "keys") == [1, 2]


def test_a_column_has_an_entry_for_every_row() -> None:
    with pytest.raises(MalformedMessage, match="keys has 1 entries for 2 rows"):
        parse_column([1], 2, 9, "keys")


def test_ragged_columns_are_split_by_their_counts() -> None:
    assert split_by_counts([1, 2, 3], [2, 0, 1], "tokens") == [[1, 2], [], [3]]
    with pytest.raises(MalformedMessage, match="tokens has 1 entries, the counts say 2"):
        split_by_counts([1], [2], "tokens")


def test_omitted_columns_have_defaults() -> None:
    plain = pb.Sequences(ids=[9], num_tokens=[2], tokens=[1, 2], num_blocks=[1], blocks=[5])
    (sequence,) = parse_sequences(plain, MESSAGE_LIMITS, 16, 8)
    assert (sequence.num_prompt_tokens, sequence.num_computed_tokens, sequence.blocks) == (2, 0, [5])
    assert (sequence.sampling_key, sequence.adapter_id, sequence.sampling,
            sequence.is_prefilled) == (0, 0, SamplingParams(), False)


def test_generated_tokens_begin_where_the_prompt_ends() -> None:
    (sequence,) = parse_sequences(make_sequences(SequenceRow(9, [1, 2, 3], [5], num_prompt_tokens=2,
                                                             sampling_key=2**64 - 1)), MESSAGE_LIMITS, 16, 8)
    assert (sequence.num_prompt_tokens, sequence.num_tokens_to_prefill, sequence.sampling_key) == (2, 3, 2**64 - 1)


def test_sampling_columns_become_one_object_per_row() -> None:
    columns = pb.Sampling(temperature=[0.5, 1.0], watermark=[True, False])
    assert parse_sampling_params(columns, 2) == [SamplingParams(temperature=0.5, watermark=True),
                                                 SamplingParams(temperature=1.0)]


def test_ragged_columns_become_tuples() -> None:
    columns = pb.Sampling(num_allowed_tokens=[2, 0, 1], allowed_tokens=[7, 8, 9], num_biased_tokens=[0, 1, 0],
                          biased_tokens=[4], num_biases=[0, 1, 0], biases=[-1.5])
    assert parse_sampling_params(columns, 3) == [SamplingParams(allowed_tokens=(7, 8)),
                                                 SamplingParams(biased_tokens=(4,), biases=(-1.5,)),
                                                 SamplingParams(allowed_tokens=(9,))]


def test_counts_of_ragged_columns_must_add_up() -> None:
    with pytest.raises(MalformedMessage, match="banned_tokens has 1 entries, the counts say 0"):
        parse_sampling_params(pb.Sampling(banned_tokens=[1]), 1)


@pytest.mark.parametrize("name", FLOAT_PARAMETERS)
def test_sampling_parameters_must_be_finite(name: str) -> None:
    with pytest.raises(MalformedMessage, match=name):
        parse_sampling_params(pb.Sampling(**{name: [float("inf")]}), 1)


@pytest.mark.parametrize("name", FLOAT_PARAMETERS)
def test_some_parameters_may_be_negative(name: str) -> None:
    more = {"num_biases": [1], "num_biased_tokens": [1], "biased_tokens": [1]} if name == "biases" else {}
    message = pb.Sampling(**{name: [-1.0]}, **more)
    if name in {"relative_frequency_penalty", "frequency_penalty", "presence_penalty", "biases"}:
        parse_sampling_params(message, 1)
    else:
        with pytest.raises(MalformedMessage, match=name):
            parse_sampling_params(message, 1)


@pytest.mark.parametrize(("tokens", "biases"), [([1, 2], [1.0]), ([1], [1.0, 2.0]), ([1, 1], [1.0, 2.0])])
def test_each_biased_token_must_have_one_bias(tokens: list[int], biases: list[float]) -> None:
    columns = pb.Sampling(num_biased_tokens=[len(tokens)], biased_tokens=tokens, num_biases=[len(biases)],
                          biases=biases)
    with pytest.raises(MalformedMessage, match="biased_tokens"):
        parse_sampling_params(columns, 1)


@pytest.mark.parametrize("name", ["end_tokens", "allowed_tokens", "banned_tokens", "biased_tokens"])
def test_listed_tokens_must_be_in_the_vocabulary(name: str) -> None:
    message = make_sequences(SequenceRow(9, [1, 2], [5]))
    getattr(message.sampling, f"num_{name}").append(1)
    getattr(message.sampling, name).append(MESSAGE_LIMITS.vocabulary_size)
    if name == "biased_tokens":
        message.sampling.num_biases.append(1)
        message.sampling.biases.append(1.0)
    with pytest.raises(MalformedMessage, match="sequence 9 names a token outside the vocabulary"):
        parse_sequences(message, MESSAGE_LIMITS, 16, 8)


@given(some.lists(some.lists(some.integers(0, 5), max_size=4), max_size=6), some.integers(0, 4))
def test_token_counts_equal_a_count_of_all_tokens(growth: list[list[int]], start: int) -> None:
    token_counts, tokens = TokenOccurrences(start), [0, 1, 0, 2]
    for more in growth:
        tokens += more
        token_counts.update(tokens)
    token_counts.update(tokens)
    assert dict(zip(token_counts.token_ids, token_counts.counts, strict=True)) == Counter(tokens[start:])


# -- texts

TEXT_LIMITS = ModelLimits(512, 8, 1, mixed_steps=True)


def test_texts_are_split_by_the_counts_column() -> None:
    assert parse_pooling_texts(make_embed([5, 6, 7], [8]), TEXT_LIMITS) == [PoolingText([5, 6, 7]), PoolingText([8])]


def test_each_text_has_its_adapter() -> None:
    message = make_embed([5], [6], adapters=[0, 9])
    assert parse_pooling_texts(message, TEXT_LIMITS) == [PoolingText([5]), PoolingText([6], 9)]


@pytest.mark.parametrize(("message", "complaint"), [
    (make_embed(), "names texts"),
    (make_embed([5], []), "text 1 has no tokens"),
    (make_embed([5] * 9), "text 0 has 9 tokens, the model holds 8"),
    (make_embed([5], [6, 512]), "text 1 has a token outside the vocabulary"),
    (make_embed([5], adapters=[1, 2]), "adapters has 2 entries for 1 rows"),
    (pb.EmbedRequest(wanted=pb.VECTORS, num_tokens=[2], tokens=[5]), "tokens has 1 entries, the counts say 2"),
    (make_embed([5], wanted=pb.WANTED_UNSPECIFIED), "wanted must be VECTORS or LABELS, got 0"),
    (make_embed([5], wanted=7), "wanted must be VECTORS or LABELS, got 7"),
], ids=str)
def test_invalid_texts_are_malformed(message: Any, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        parse_pooling_texts(message, TEXT_LIMITS)
