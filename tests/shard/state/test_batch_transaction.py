"""Messages that `ShardState` rejects without a change."""

from copy import deepcopy
from typing import Any

import pytest
from support.shards.protocol_messages import (
    SequenceRow,
    make_chunks,
    make_concat,
    make_decode,
    make_filter,
    make_grants,
    make_join,
    make_keep,
    make_prefill,
)
from support.shards.shard_states import PROMPT_TOKENS, SHORT_PROMPT_TOKENS, apply_and_finish, make_shard_state

from shard.errors import MalformedMessage, RejectedMessage
from shard.pb import shard_pb2 as pb
from shard.state.batch_transaction import BlockClaimChecker
from shard.state.block_usage import BlockUsage
from shard.state.shard_state import ShardState

# Messages that a `ShardState` with sequences 7 and 8 in batch 1 and 30 in batch 3 rejects.
REJECTED_MESSAGES = {
    "the sequence is here already": make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [9])),
    "the sequence is here already, in another batch": make_prefill(2, SequenceRow(7, SHORT_PROMPT_TOKENS, [9])),
    "a block is held by another sequence": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [0])),
    "a block that is shared would be written": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [1])),
    "a cached block was never filled": make_prefill(2, SequenceRow(9, PROMPT_TOKENS, [20, 21], num_cached=16)),
    "a cached block is being written": make_prefill(2, SequenceRow(9, PROMPT_TOKENS, [2, 21], num_cached=16)),
    "the adapter was not loaded": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9], adapter_id=3)),
    "the grammar was not loaded": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9], grammar_id=3)),
    "the chunk starts elsewhere": make_prefill(1, chunk_rows=[(8, 17, 1)]),
    "the chunk goes beyond the tokens": make_prefill(1, chunk_rows=[(8, 16, 8)]),
    "the prompt is complete": make_prefill(1, chunk_rows=[(7, 3, 1)]),
    "the chunk is of a sequence of another batch": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9]),
                                                                chunk_rows=[(8, 16, 1)]),
    "the chunk is of an unknown sequence": make_prefill(1, chunk_rows=[(99, 0, 1)]),
    "a grant is for an unknown sequence": make_decode(1, grants=make_grants(s99=[9])),
    "a grant is for a sequence that leaves": make_decode(1, keep=make_keep(7), grants=make_grants(s8=[9])),
    "a granted block is held": make_decode(1, grants=make_grants(s7=[1])),
    "the batch is unknown": make_decode(2),
    "nobody is ready": make_decode(3),
    "nobody is ready any more": make_decode(1, keep=make_keep(8)),
    "an unknown sequence is kept": make_filter(1, 7, 99),
    "a sequence of another batch is kept": make_filter(1, 7, 30),
    "an unknown batch is filtered": make_filter(2),
    "an unknown batch is filtered on the way": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9]),
                                                            keep=make_keep()),
    "an unknown batch is joined": make_concat(1, 2),
    "an unknown batch is joined to": make_concat(2, 1),
    "an unknown batch is joined on the way": make_decode(1, join=make_join(2)),
    "a batch is joined to one that was forgotten": make_prefill(1, SequenceRow(9, SHORT_PROMPT_TOKENS, [9]),
                                                                keep=make_keep(), join=make_join(3)),
    "the step is empty": make_prefill(1),
    "the step is empty, though somebody enters": make_prefill(1, SequenceRow(9, SHORT_PROMPT_TOKENS, [9]),
                                                              chunk_rows=[]),
    "more prompt tokens than warm-up allowed": make_prefill(
        2, SequenceRow(9, [1] * 200, range(10, 23)), SequenceRow(11, [1] * 57, range(23, 27))),
}
MALFORMED_MESSAGES = {
    "a sequence is named twice": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9]),
                                              SequenceRow(9, SHORT_PROMPT_TOKENS, [10])),
    "a column is too short": pb.PrefillRequest(batch=2, sequences=pb.Sequences(
        ids=[9, 10], num_tokens=[1, 1], tokens=[1, 1], num_blocks=[1, 1], blocks=[9, 10], keys=[1])),
    "there are more traces than chunks": pb.PrefillRequest(batch=1, chunks=pb.Chunks(
        sequences=[8], starts=[16], lengths=[1], traceparents=["", ""])),
    "a column has no rows": pb.PrefillRequest(batch=1, sequences=pb.Sequences(tokens=[1]), alongside=True),
    "there are fewer tokens than counted": pb.PrefillRequest(batch=2, sequences=pb.Sequences(
        ids=[9], num_tokens=[2], tokens=[1], num_blocks=[1], blocks=[9])),
    "there are more blocks than counted": pb.PrefillRequest(batch=2, sequences=pb.Sequences(
        ids=[9], num_tokens=[1], tokens=[1], num_blocks=[1], blocks=[9, 10])),
    "there are no tokens": make_prefill(2, SequenceRow(9, [], [9]), chunk_rows=[(9, 0, 1)]),
    "there is no prompt": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9], num_prompt_tokens=0)),
    "there is more prompt than tokens": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9], num_prompt_tokens=4)),
    "a token is outside the vocabulary": make_prefill(2, SequenceRow(9, [512], [9])),
    "there are more tokens than the model holds": make_prefill(2, SequenceRow(9, [1] * 257, range(3, 20)),
                                                               chunk_rows=[(9, 0, 16)]),
    "there are too few blocks": make_prefill(2, SequenceRow(9, PROMPT_TOKENS, [9])),
    "a block does not exist": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [32])),
    "a block is named twice by one": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9, 9])),
    "a block is named twice by two": make_prefill(2, SequenceRow(9, SHORT_PROMPT_TOKENS, [9]),
                                                  SequenceRow(10, SHORT_PROMPT_TOKENS, [9])),
    "a block is granted twice": make_decode(1, grants=make_grants(s7=[9], s8=[9])),
    "a granted block does not exist": make_decode(1, grants=make_grants(s7=[32])),
    "a granted block is named by a newcomer": make_prefill(1, SequenceRow(9, SHORT_PROMPT_TOKENS, [9]),
                                                           grants=make_grants(s7=[9])),
    "a grant is given twice": make_decode(1, grants=pb.Grants(sequences=[7, 7], num_blocks=[1, 1], blocks=[9, 10])),
    "all is cached": make_prefill(2, SequenceRow(9, PROMPT_TOKENS[:16], [1], num_cached=16), chunk_rows=[(9, 0, 1)]),
    "half a block is cached": make_prefill(2, SequenceRow(9, PROMPT_TOKENS, [9, 10], num_cached=8)),
    "logprobs of a cached prompt are wanted": make_prefill(2, SequenceRow(9, PROMPT_TOKENS, [1, 9], num_cached=16,
                                                                          prompt_logprobs=True)),
    "the chunk is empty": make_prefill(1, chunk_rows=[(8, 16, 0)]),
    "a sequence has two chunks": make_prefill(1, chunk_rows=[(8, 16, 1), (8, 17, 1)]),
    "a sequence is kept twice": make_filter(1, 7, 7),
    "nothing is said about what to keep": pb.FilterRequest(batch=1),
    "one batch is joined": make_concat(1),
    "no batch is joined": make_concat(),
    "no batch is joined on the way": make_decode(1, join=make_join()),
    "a batch is joined twice": make_concat(1, 3, 3),
    "a batch is joined to itself": make_concat(1, 1),
    "a temperature is not a number": pb.PrefillRequest(batch=2, chunks=make_chunks((9, 0, 3)), sequences=pb.Sequences(
        ids=[9], num_tokens=[3], tokens=SHORT_PROMPT_TOKENS, num_blocks=[1], blocks=[9],
        sampling=pb.Sampling(temperature=[float("nan")]))),
    "a temperature is negative": pb.PrefillRequest(batch=2, chunks=make_chunks((9, 0, 3)), sequences=pb.Sequences(
        ids=[9], num_tokens=[3], tokens=SHORT_PROMPT_TOKENS, num_blocks=[1], blocks=[9],
        sampling=pb.Sampling(temperature=[-1.0]))),
}


def check_rejected_without_change(shard_state: ShardState, message: Any, error: type[Exception]) -> None:
    """Assert that the shard's state rejects the message with `error` and changes nothing."""
    apply_and_finish(shard_state,
                     make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]), SequenceRow(8, PROMPT_TOKENS, [1, 2]),
                                  chunk_rows=[(7, 0, 3), (8, 0, 16)]))
    apply_and_finish(shard_state, make_prefill(3, SequenceRow(30, PROMPT_TOKENS, [5, 6]), chunk_rows=[(30, 0, 1)]))
    before = deepcopy((shard_state.batches, shard_state.sequences, vars(shard_state.block_usage)))
    with pytest.raises(error):
        apply_and_finish(shard_state, message)
    assert (shard_state.batches, shard_state.sequences, vars(shard_state.block_usage)) == before


@pytest.mark.parametrize("reason", REJECTED_MESSAGES)
def test_messages_that_do_not_fit_the_state_are_rejected(reason: str) -> None:
    check_rejected_without_change(make_shard_state(), REJECTED_MESSAGES[reason], RejectedMessage)


@pytest.mark.parametrize("reason", MALFORMED_MESSAGES)
def test_invalid_messages_are_malformed(reason: str) -> None:
    check_rejected_without_change(make_shard_state(), MALFORMED_MESSAGES[reason], MalformedMessage)


def test_mixed_steps_are_rejected_if_unsupported() -> None:
    check_rejected_without_change(make_shard_state(mixed_steps=False),
                                  make_prefill(1, SequenceRow(9, SHORT_PROMPT_TOKENS, [9]), alongside=True),
                                  RejectedMessage)


# -- claims of blocks


@pytest.fixture
def block_usage() -> BlockUsage:
    """Block 0 is full and held twice, block 1 is being written, the others are free."""
    block_usage = BlockUsage(16, 4)
    block_usage.acquire([0, 1])
    block_usage.mark_full([0])
    block_usage.share([0])
    return block_usage


def test_only_free_blocks_can_be_acquired(block_usage: BlockUsage) -> None:
    BlockClaimChecker(block_usage).check_acquire([2, 3])
    with pytest.raises(RejectedMessage, match="block 0 is held"):
        BlockClaimChecker(block_usage).check_acquire([0])


def test_only_full_blocks_can_be_shared(block_usage: BlockUsage) -> None:
    BlockClaimChecker(block_usage).check_share([0])
    with pytest.raises(RejectedMessage, match=r"block 1 .* never filled"):
        BlockClaimChecker(block_usage).check_share([1])


def test_a_block_is_free_when_all_holders_released_it(block_usage: BlockUsage) -> None:
    claims = BlockClaimChecker(block_usage)
    claims.note_release([0])
    with pytest.raises(RejectedMessage):
        claims.check_acquire([0])
    claims.note_release([0])
    claims.check_acquire([0])


def test_message_may_share_a_block_several_times_but_acquire_it_once(block_usage: BlockUsage) -> None:
    claims = BlockClaimChecker(block_usage)
    claims.check_share([0])
    claims.check_share([0])
    claims.check_acquire([2])
    for claim in (lambda: claims.check_acquire([2]), lambda: claims.check_acquire([0]),
                  lambda: claims.check_share([2])):
        with pytest.raises(MalformedMessage):
            claim()


def test_claims_do_not_change_the_block_usage(block_usage: BlockUsage) -> None:
    claims = BlockClaimChecker(block_usage)
    claims.note_release([0, 1])
    claims.check_acquire([1, 2])
    assert block_usage.num_holders == [2, 1, 0, 0]
    assert list(block_usage.is_full) == [True, False, False, False]
