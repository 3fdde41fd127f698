"""Tests of shard/state/shard_state.py: the state after each message."""

import pytest
from support.shards.protocol_messages import (
    SequenceRow,
    make_concat,
    make_decode,
    make_filter,
    make_grants,
    make_keep,
    make_prefill,
)
from support.shards.shard_states import (
    PROMPT_TOKENS,
    SAMPLED_TOKEN,
    SHORT_PROMPT_TOKENS,
    apply_and_finish,
    get_sequence_ids,
    make_shard_state,
)

from shard.errors import RejectedMessage
from shard.pb import shard_pb2 as pb
from shard.state.sequence import ModelLimits
from shard.state.shard_state import ShardState


@pytest.fixture
def shard_state() -> ShardState:
    return make_shard_state()


def test_more_decodes_than_warmup_allowed_are_rejected() -> None:
    shard_state = ShardState(ModelLimits(512, 256, 1, True))
    shard_state.apply_warmup(pb.WarmupRequest(block_size=16, max_prefill_tokens=64, max_batch_size=1), 32)
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]),
                                          SequenceRow(8, SHORT_PROMPT_TOKENS, [1])))
    with pytest.raises(RejectedMessage, match="2 sequences would decode, warm-up allowed 1"):
        apply_and_finish(shard_state, make_decode(1))


def test_chunks_advance_a_sequence_and_the_last_one_completes_prefill(shard_state: ShardState) -> None:
    first_step = apply_and_finish(shard_state,
                                  make_prefill(1, SequenceRow(8, PROMPT_TOKENS, [1, 2]), chunk_rows=[(8, 0, 20)]))
    sequence = shard_state.sequences[8]
    assert (first_step.sampled_sequences, sequence.num_computed_tokens, sequence.is_prefilled) == ([], 20, False)
    assert get_sequence_ids(apply_and_finish(shard_state,
                                             make_prefill(1, chunk_rows=[(8, 20, 3)])).sampled_sequences) == [8]
    assert (sequence.num_computed_tokens, sequence.is_prefilled,
            sequence.tokens) == (23, True, [*PROMPT_TOKENS, SAMPLED_TOKEN])


def test_the_last_token_is_not_in_the_cache_yet(shard_state: ShardState) -> None:
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0])))
    apply_and_finish(shard_state, make_decode(1))
    assert (len(shard_state.sequences[7].tokens), shard_state.sequences[7].num_computed_tokens) == (5, 4)


def test_multi_token_step_needs_slots_for_all_tokens_but_the_last() -> None:
    shard_state = make_shard_state(tokens_per_step=4)
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, [1] * 12, [0])))
    apply_and_finish(shard_state, make_decode(1), tokens_per_sequence=1)  # writes slots 12 to 15 at most
    with pytest.raises(RejectedMessage, match="too few blocks for 17 places"):
        apply_and_finish(shard_state, make_decode(1))
    apply_and_finish(shard_state, make_decode(1, grants=make_grants(s7=[1])), tokens_per_sequence=4)
    assert (len(shard_state.sequences[7].tokens), shard_state.sequences[7].num_computed_tokens) == (18, 17)
    assert list(shard_state.block_usage.is_full[:2]) == [True, False]


def test_a_block_may_be_shared_once_it_is_full(shard_state: ShardState) -> None:
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, [1] * 15, [0])))
    with pytest.raises(RejectedMessage, match="never filled"):
        apply_and_finish(shard_state, make_prefill(1, SequenceRow(8, [1] * 17, [0, 1], num_cached=16)))
    apply_and_finish(shard_state, make_decode(1))
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(8, [1] * 17, [0, 1], num_cached=16)))
    assert shard_state.block_usage.num_holders[:2] == [2, 1]


def test_a_shared_block_is_free_when_its_last_holder_leaves(shard_state: ShardState) -> None:
    apply_and_finish(shard_state,
                     make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1]), SequenceRow(6, SHORT_PROMPT_TOKENS, [3])))
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(8, PROMPT_TOKENS, [0, 2], num_cached=16)))
    apply_and_finish(shard_state, make_filter(1, 6, 8))
    with pytest.raises(RejectedMessage, match="block 0 is held"):
        apply_and_finish(shard_state, make_prefill(1, SequenceRow(9, SHORT_PROMPT_TOKENS, [0])))
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(9, SHORT_PROMPT_TOKENS, [0]), keep=make_keep(6)))
    assert shard_state.block_usage.num_holders[:4] == [1, 0, 0, 1]


def test_rewritten_block_is_not_full_any_more(shard_state: ShardState) -> None:
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1])))
    apply_and_finish(shard_state, make_filter(1))
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(8, SHORT_PROMPT_TOKENS, [0])))
    apply_and_finish(shard_state, make_filter(1))
    with pytest.raises(RejectedMessage, match="never filled"):
        apply_and_finish(shard_state, make_prefill(1, SequenceRow(9, PROMPT_TOKENS, [0, 1], num_cached=16)))


def test_a_sequence_may_leave_and_enter_in_one_message(shard_state: ShardState) -> None:
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1])))
    apply_and_finish(shard_state,
                     make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1], num_cached=16), keep=make_keep()))
    assert (shard_state.sequences[7].num_cached_tokens, shard_state.block_usage.num_holders[:2]) == (16, [1, 1])


def test_filter_keeps_the_order_of_the_batch(shard_state: ShardState) -> None:
    apply_and_finish(shard_state,
                     make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]), SequenceRow(8, SHORT_PROMPT_TOKENS, [1]),
                                  SequenceRow(9, SHORT_PROMPT_TOKENS, [2])))
    apply_and_finish(shard_state, make_filter(1, 9, 7))
    assert list(shard_state.batches[1]) == [7, 9]


def test_concat_appends_batches_in_the_order_of_the_message(shard_state: ShardState) -> None:
    for batch in (1, 2, 3):
        apply_and_finish(shard_state, make_prefill(batch, SequenceRow(6 + batch, SHORT_PROMPT_TOKENS, [batch])))
    apply_and_finish(shard_state, make_concat(2, 3, 1))
    assert {batch: list(members) for batch, members in shard_state.batches.items()} == {2: [8, 9, 7]}


def test_failed_sequence_stays_in_its_batch_but_yields_nothing(shard_state: ShardState) -> None:
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]),
                                          SequenceRow(8, SHORT_PROMPT_TOKENS, [1])), failures={7: pb.NON_FINITE})
    step = apply_and_finish(shard_state, make_decode(1))
    assert (get_sequence_ids(step.decodes), get_sequence_ids(step.failed_sequences)) == ([8], [7])
    assert shard_state.sequences[7].tokens == SHORT_PROMPT_TOKENS


def test_decode_of_failed_sequences_only_is_accepted(shard_state: ShardState) -> None:
    """The decode may already be in flight when the failure is reported."""
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0])),
                     failures={7: pb.NON_FINITE})
    assert get_sequence_ids(apply_and_finish(shard_state, make_decode(1)).failed_sequences) == [7]


def test_prefill_of_a_failed_sequence_still_advances_in_the_shard_state(shard_state: ShardState) -> None:
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(8, PROMPT_TOKENS, [1, 2]), chunk_rows=[(8, 0, 4)]),
                     failures={8: pb.GRAMMAR})
    step = apply_and_finish(shard_state, make_prefill(1, chunk_rows=[(8, 4, 19)]))
    assert (step.chunks, get_sequence_ids(step.failed_sequences)) == ([], [8])
    assert shard_state.sequences[8].is_prefilled


def test_blocks_of_a_failed_sequence_are_never_shared(shard_state: ShardState) -> None:
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(8, PROMPT_TOKENS, [1, 2])), failures={8: pb.NON_FINITE})
    assert not any(shard_state.block_usage.is_full)


def test_sequence_at_the_maximum_length_fails_alone() -> None:
    shard_state = ShardState(ModelLimits(512, 16, 4, True))
    shard_state.apply_warmup(pb.WarmupRequest(block_size=16, max_prefill_tokens=64, max_batch_size=8), 8)
    apply_and_finish(shard_state,
                     make_prefill(1, SequenceRow(7, [1] * 14, [0]), SequenceRow(8, SHORT_PROMPT_TOKENS, [1])))
    assert shard_state.max_tokens_per_decode(shard_state.sequences[7]) == 2
    apply_and_finish(shard_state, make_decode(1), tokens_per_sequence=2)
    step = apply_and_finish(shard_state, make_decode(1))
    assert (get_sequence_ids(step.decodes), get_sequence_ids(step.failed_sequences)) == ([8], [7])
    assert shard_state.sequences[7].failure == pb.NO_ROOM


def test_reset_clears_everything_but_loaded_resources(shard_state: ShardState) -> None:
    shard_state.mark_loaded(pb.LoadRequest(kind=pb.KIND_GRAMMAR, id=3))
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1], grammar_id=3)))
    shard_state.reset()
    assert not shard_state.batches
    assert not shard_state.sequences
    assert not any(shard_state.block_usage.num_holders)
    assert not any(shard_state.block_usage.is_full)
    apply_and_finish(shard_state, make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1], grammar_id=3)))


@pytest.mark.parametrize(("places", "num_blocks"), [(0, 32), (100, 6), (10**6, 32)])
def test_number_of_blocks_is_limited_by_memory_and_by_the_request(places: int, num_blocks: int) -> None:
    shard_state = ShardState(ModelLimits(512, 256, 1, True))
    shard_state.apply_warmup(pb.WarmupRequest(block_size=16, max_prefill_tokens=1, max_batch_size=1,
                                         max_cache_tokens=places), 32)
    assert shard_state.block_usage.num_blocks == num_blocks
