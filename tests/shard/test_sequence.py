from dataclasses import fields

import pytest

from shard.errors import Malformed
from shard.pb import shard_pb2 as pb
from shard.sequence import Limits, Sampling, column, ragged, read_sampling, read_sequences
from tests.shard.messages import Row, sequences

LIMITS = Limits(vocabulary_size=512, max_positions=64, tokens_per_step=1, mixed_steps=True)


def test_sampling_has_the_fields_of_the_contract() -> None:
    assert [field.name for field in fields(Sampling)] == [field.name for field in pb.Sampling.DESCRIPTOR.fields]


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


@pytest.mark.parametrize("name", [f.name for f in pb.Sampling.DESCRIPTOR.fields if f.type == f.TYPE_FLOAT])
def test_parameters_are_numbers(name: str) -> None:
    with pytest.raises(Malformed, match=name):
        read_sampling(pb.Sampling(**{name: [float("inf")]}), 1)


def test_only_the_frequency_penalty_may_be_negative() -> None:
    read_sampling(pb.Sampling(frequency_penalty=[-1.0]), 1)
    with pytest.raises(Malformed, match="top_p"):
        read_sampling(pb.Sampling(top_p=[-1.0]), 1)
