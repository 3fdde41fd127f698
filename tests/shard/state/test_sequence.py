from dataclasses import fields
from itertools import chain

import pytest

from shard.errors import Malformed
from shard.pb import shard_pb2 as pb
from shard.state.sequence import Limits, Sampling, column, ragged, read_sampling, read_sequences
from tests.shard.messages import Row, sequences

FLOATS = [field.name for field in pb.Sampling.DESCRIPTOR.fields if field.type == field.TYPE_FLOAT]
LIMITS = Limits(vocabulary_size=512, max_positions=64, tokens_per_step=1, mixed_steps=True)


def test_sampling_has_the_fields_of_the_contract() -> None:
    """A field that holds a tuple is a ragged column, with its counts before it."""
    columns = [[f"num_{field.name}", field.name] if field.default == () else [field.name] for field in fields(Sampling)]
    assert list(chain(*columns)) == [field.name for field in pb.Sampling.DESCRIPTOR.fields]


def test_an_empty_column_is_a_column_of_defaults() -> None:
    assert column([], 3, 9, "keys") == [9, 9, 9]
    assert column([1, 2], 2, 9, "keys") == [1, 2]


def test_a_column_has_an_entry_for_every_row() -> None:
    with pytest.raises(Malformed, match="keys has 1 entries for 2 rows"):
        column([1], 2, 9, "keys")


def test_ragged_columns_are_cut_by_their_counts() -> None:
    assert ragged([1, 2, 3], [2, 0, 1], "tokens") == [[1, 2], [], [3]]
    with pytest.raises(Malformed, match="tokens has 1 entries, the counts say 2"):
        ragged([1], [2], "tokens")


def test_what_is_not_said_has_a_default() -> None:
    plain = pb.Sequences(ids=[9], num_tokens=[2], tokens=[1, 2], num_blocks=[1], blocks=[5])
    (sequence,) = read_sequences(plain, LIMITS, 16, 8)
    assert (sequence.num_prompt_tokens, sequence.computed, sequence.blocks) == (2, 0, [5])
    assert (sequence.key, sequence.adapter, sequence.sampling, sequence.ready) == (0, 0, Sampling(), False)


def test_generated_tokens_begin_where_the_prompt_ends() -> None:
    (sequence,) = read_sequences(sequences(Row(9, [1, 2, 3], [5], prompt=2, key=2**64 - 1)), LIMITS, 16, 8)
    assert (sequence.num_prompt_tokens, sequence.num_given, sequence.key) == (2, 3, 2**64 - 1)


def test_the_columns_of_sampling_become_one_object_a_row() -> None:
    columns = pb.Sampling(temperature=[0.5, 1.0], watermark=[True, False])
    assert read_sampling(columns, 2) == [Sampling(temperature=0.5, watermark=True), Sampling(temperature=1.0)]


def test_ragged_columns_become_tuples() -> None:
    columns = pb.Sampling(num_allowed_tokens=[2, 0, 1], allowed_tokens=[7, 8, 9], num_biased_tokens=[0, 1, 0],
                          biased_tokens=[4], num_biases=[0, 1, 0], biases=[-1.5])
    assert read_sampling(columns, 3) == [
        Sampling(allowed_tokens=(7, 8)), Sampling(biased_tokens=(4,), biases=(-1.5,)), Sampling(allowed_tokens=(9,))]


def test_counts_of_ragged_columns_add_up() -> None:
    with pytest.raises(Malformed, match="banned_tokens has 1 entries, the counts say 0"):
        read_sampling(pb.Sampling(banned_tokens=[1]), 1)


@pytest.mark.parametrize("name", FLOATS)
def test_parameters_are_numbers(name: str) -> None:
    with pytest.raises(Malformed, match=name):
        read_sampling(pb.Sampling(**{name: [float("inf")]}), 1)


@pytest.mark.parametrize("name", FLOATS)
def test_some_parameters_may_be_negative(name: str) -> None:
    more = {"num_biases": [1], "num_biased_tokens": [1], "biased_tokens": [1]} if name == "biases" else {}
    message = pb.Sampling(**{name: [-1.0]}, **more)
    if name in {"relative_frequency_penalty", "frequency_penalty", "presence_penalty", "biases"}:
        read_sampling(message, 1)
    else:
        with pytest.raises(Malformed, match=name):
            read_sampling(message, 1)


@pytest.mark.parametrize(("tokens", "biases"), [([1, 2], [1.0]), ([1], [1.0, 2.0]), ([1, 1], [1.0, 2.0])])
def test_each_biased_token_has_one_bias(tokens: list[int], biases: list[float]) -> None:
    columns = pb.Sampling(num_biased_tokens=[len(tokens)], biased_tokens=tokens, num_biases=[len(biases)],
                          biases=biases)
    with pytest.raises(Malformed, match="biased_tokens"):
        read_sampling(columns, 1)


@pytest.mark.parametrize("name", ["end_tokens", "allowed_tokens", "banned_tokens", "biased_tokens"])
def test_named_tokens_are_in_the_vocabulary(name: str) -> None:
    message = sequences(Row(9, [1, 2], [5]))
    getattr(message.sampling, f"num_{name}").append(1)
    getattr(message.sampling, name).append(LIMITS.vocabulary_size)
    if name == "biased_tokens":
        message.sampling.num_biases.append(1)
        message.sampling.biases.append(1.0)
    with pytest.raises(Malformed, match="sequence 9 names a token outside the vocabulary"):
        read_sequences(message, LIMITS, 16, 8)
