"""State of the ledger after each message."""

import pytest

from shard.pb import shard_pb2 as pb
from shard.state.ledger import Ledger, Refused
from shard.state.sequence import Limits
from tests.shard.books import PROMPT, SHORT, TOKEN, do, ids, new_ledger
from tests.shard.messages import Row, concat, decode, filtered, grants, keep, prefill


@pytest.fixture
def ledger() -> Ledger:
    return new_ledger()


def test_more_decodes_than_warmup_allowed_are_refused() -> None:
    ledger = Ledger(Limits(512, 256, 1, True))
    ledger.warmup(pb.WarmupRequest(block_size=16, max_prefill_tokens=64, max_batch_size=1), 32)
    do(ledger, prefill(1, Row(7, SHORT, [0]), Row(8, SHORT, [1])))
    with pytest.raises(Refused, match="2 sequences would decode, warm-up allowed 1"):
        do(ledger, decode(1))


def test_a_chunk_moves_progress_and_the_last_one_makes_ready(ledger: Ledger) -> None:
    begun = do(ledger, prefill(1, Row(8, PROMPT, [1, 2]), run=[(8, 0, 20)]))
    sequence = ledger.sequences[8]
    assert (begun.yielding, sequence.computed, sequence.ready) == ([], 20, False)
    assert ids(do(ledger, prefill(1, run=[(8, 20, 3)])).yielding) == [8]
    assert (sequence.computed, sequence.ready, sequence.tokens) == (23, True, [*PROMPT, TOKEN])


def test_the_last_token_is_not_in_the_cache_yet(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(7, SHORT, [0])))
    do(ledger, decode(1))
    assert (len(ledger.sequences[7].tokens), ledger.sequences[7].computed) == (5, 4)


def test_a_step_that_may_yield_several_tokens_needs_places_for_all_but_the_last() -> None:
    ledger = new_ledger(tokens_per_step=4)
    do(ledger, prefill(1, Row(7, [1] * 12, [0])))
    do(ledger, decode(1), count=1)  # writes slots 12 to 15 at most
    with pytest.raises(Refused, match="too few blocks for 17 places"):
        do(ledger, decode(1))
    do(ledger, decode(1, grants=grants(s7=[1])), count=4)
    assert (len(ledger.sequences[7].tokens), ledger.sequences[7].computed) == (18, 17)
    assert list(ledger.blocks.full[:2]) == [True, False]


def test_a_block_may_be_shared_once_it_is_full(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(7, [1] * 15, [0])))
    with pytest.raises(Refused, match="never filled"):
        do(ledger, prefill(1, Row(8, [1] * 17, [0, 1], cached=16)))
    do(ledger, decode(1))
    do(ledger, prefill(1, Row(8, [1] * 17, [0, 1], cached=16)))
    assert ledger.blocks.num_holders[:2] == [2, 1]


def test_a_shared_block_is_free_when_its_last_holder_leaves(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(7, PROMPT, [0, 1]), Row(6, SHORT, [3])))
    do(ledger, prefill(1, Row(8, PROMPT, [0, 2], cached=16)))
    do(ledger, filtered(1, 6, 8))
    with pytest.raises(Refused, match="block 0 is held"):
        do(ledger, prefill(1, Row(9, SHORT, [0])))
    do(ledger, prefill(1, Row(9, SHORT, [0]), keep=keep(6)))
    assert ledger.blocks.num_holders[:4] == [1, 0, 0, 1]


def test_a_block_that_is_written_anew_is_not_full_any_more(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(7, PROMPT, [0, 1])))
    do(ledger, filtered(1))
    do(ledger, prefill(1, Row(8, SHORT, [0])))
    do(ledger, filtered(1))
    with pytest.raises(Refused, match="never filled"):
        do(ledger, prefill(1, Row(9, PROMPT, [0, 1], cached=16)))


def test_a_sequence_may_leave_and_enter_in_one_message(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(7, PROMPT, [0, 1])))
    do(ledger, prefill(1, Row(7, PROMPT, [0, 1], cached=16), keep=keep()))
    assert (ledger.sequences[7].num_cached, ledger.blocks.num_holders[:2]) == (16, [1, 1])


def test_keep_keeps_the_order_of_the_batch(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(7, SHORT, [0]), Row(8, SHORT, [1]), Row(9, SHORT, [2])))
    do(ledger, filtered(1, 9, 7))
    assert list(ledger.batches[1]) == [7, 9]


def test_joined_batches_come_behind_in_the_order_of_the_message(ledger: Ledger) -> None:
    for batch in (1, 2, 3):
        do(ledger, prefill(batch, Row(6 + batch, SHORT, [batch])))
    do(ledger, concat(2, 3, 1))
    assert {batch: list(members) for batch, members in ledger.batches.items()} == {2: [8, 9, 7]}


def test_who_failed_takes_part_but_yields_nothing(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(7, SHORT, [0]), Row(8, SHORT, [1])), failures={7: pb.NON_FINITE})
    step = do(ledger, decode(1))
    assert (ids(step.decodes), ids(step.failed)) == ([8], [7])
    assert ledger.sequences[7].tokens == SHORT


def test_a_decode_of_nobody_but_failed_ones_is_no_refusal(ledger: Ledger) -> None:
    """The decode may already be in flight when the failure is reported."""
    do(ledger, prefill(1, Row(7, SHORT, [0])), failures={7: pb.NON_FINITE})
    assert ids(do(ledger, decode(1)).failed) == [7]


def test_who_failed_within_its_prompt_goes_on_in_the_books(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(8, PROMPT, [1, 2]), run=[(8, 0, 4)]), failures={8: pb.GRAMMAR})
    step = do(ledger, prefill(1, run=[(8, 4, 19)]))
    assert (step.chunks, ids(step.failed)) == ([], [8])
    assert ledger.sequences[8].ready


def test_what_a_failing_sequence_computed_is_never_shared(ledger: Ledger) -> None:
    do(ledger, prefill(1, Row(8, PROMPT, [1, 2])), failures={8: pb.NON_FINITE})
    assert not any(ledger.blocks.full)


def test_a_sequence_for_which_the_model_has_no_place_left_fails_alone() -> None:
    ledger = Ledger(Limits(512, 16, 4, True))
    ledger.warmup(pb.WarmupRequest(block_size=16, max_prefill_tokens=64, max_batch_size=8), 8)
    do(ledger, prefill(1, Row(7, [1] * 14, [0]), Row(8, SHORT, [1])))
    assert ledger.room(ledger.sequences[7]) == 2
    do(ledger, decode(1), count=2)
    step = do(ledger, decode(1))
    assert (ids(step.decodes), ids(step.failed)) == ([8], [7])
    assert ledger.sequences[7].failure == pb.NO_ROOM


def test_reset_forgets_all_but_what_is_loaded(ledger: Ledger) -> None:
    ledger.load(pb.LoadRequest(kind=pb.KIND_GRAMMAR, id=3))
    do(ledger, prefill(1, Row(7, PROMPT, [0, 1], grammar=3)))
    ledger.reset()
    assert not ledger.batches
    assert not ledger.sequences
    assert not any(ledger.blocks.num_holders)
    assert not any(ledger.blocks.full)
    do(ledger, prefill(1, Row(7, PROMPT, [0, 1], grammar=3)))


@pytest.mark.parametrize(("places", "num_blocks"), [(0, 32), (100, 6), (10**6, 32)])
def test_the_cache_has_the_blocks_that_fit_and_no_more_than_wanted(places: int, num_blocks: int) -> None:
    ledger = Ledger(Limits(512, 256, 1, True))
    ledger.warmup(pb.WarmupRequest(block_size=16, max_prefill_tokens=1, max_batch_size=1, max_cache_tokens=places), 32)
    assert ledger.blocks.count == num_blocks
