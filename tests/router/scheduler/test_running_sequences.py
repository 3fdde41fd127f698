"""Tests of router/scheduler/running_sequences.py."""

from dataclasses import replace

from support.scheduling.recordings import SMALL_MODEL_INFO
from support.scheduling.simulated_world import add_block_hashes

from router.request import Request, Tenant
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Filter

SETTINGS = SchedulerSettings(look_ahead=2)


def make_running_sequences(num_blocks=20, tokens_per_step=1, **settings):
    model_info = replace(SMALL_MODEL_INFO, num_blocks=num_blocks, tokens_per_step=tokens_per_step)
    return RunningSequences(replace(SETTINGS, **settings), model_info)


def make_sequence(number, prompt=16, output=16, priority=0):
    return Sequence(Request(str(number), (1,) * prompt, output, priority=priority), number, float(number))


def add_token(sequence):
    sequence.generated += [7]
    sequence.length += 1


def enter_computed(running_sequences, *sequences):
    """Enter the sequences into one new batch, with their prompts computed and a first token each."""
    batch = running_sequences.make_empty_batch()
    for sequence in sequences:
        running_sequences.enter_batch(sequence, batch)
        sequence.num_scheduled_tokens = sequence.num_tokens_to_prefill
        add_token(sequence)
    return batch


def test_new_sequence_takes_the_blocks_of_its_prompt():
    running_sequences = make_running_sequences()
    running_sequences.enter_batch(make_sequence(1, prompt=33), running_sequences.make_empty_batch())
    assert running_sequences.block_pool.num_free == 17


def test_last_token_needs_no_slot():
    assert make_running_sequences().max_blocks_of(make_sequence(1, prompt=16, output=17)) == 2


def test_several_tokens_per_step_need_spare_slots():
    assert make_running_sequences(tokens_per_step=4).max_blocks_of(make_sequence(1, prompt=16, output=17)) == 3


def test_new_sequence_leaves_a_free_block_for_each_running_one():
    running_sequences = make_running_sequences(num_blocks=6)
    enter_computed(running_sequences, make_sequence(1), make_sequence(2))
    assert running_sequences.has_room_for(make_sequence(3, prompt=32))
    assert not running_sequences.has_room_for(make_sequence(3, prompt=33))


def test_new_sequence_leaves_the_reserved_share_of_the_cache_free():
    running_sequences = make_running_sequences(num_blocks=100, reserved_block_fraction=0.5)
    enter_computed(running_sequences, make_sequence(1))
    assert running_sequences.has_room_for(make_sequence(2, prompt=49 * 16))
    assert not running_sequences.has_room_for(make_sequence(2, prompt=50 * 16))


def test_first_sequence_may_use_the_whole_cache():
    assert make_running_sequences(num_blocks=4).has_room_for(make_sequence(1, prompt=64, output=1))


def test_no_more_sequences_than_the_batch_size_run():
    running_sequences = make_running_sequences(max_batch_size=1)
    enter_computed(running_sequences, make_sequence(1))
    assert not running_sequences.has_room_for(make_sequence(2))


def test_sequence_that_fills_its_last_block_gets_another():
    running_sequences, sequence = make_running_sequences(), make_sequence(1)
    enter_computed(running_sequences, sequence)
    grants, yielded = running_sequences.allocate_for_decodes([sequence])
    assert [len(grant.blocks) for grant in grants] == [1]
    assert not yielded


def test_latest_arrival_is_preempted_when_blocks_run_out():
    running_sequences = make_running_sequences(num_blocks=4)
    everyone = [make_sequence(1), make_sequence(2), make_sequence(3)]
    enter_computed(running_sequences, *everyone)
    grants, yielded = running_sequences.allocate_for_decodes(everyone)
    assert [s.id for s in yielded] == [3]
    assert [grant.sequence_id for grant in grants] == [1, 2]


def test_lower_priority_is_preempted_before_later_arrival():
    running_sequences = make_running_sequences(num_blocks=3)
    everyone = [make_sequence(1), make_sequence(2, priority=-1), make_sequence(3)]
    enter_computed(running_sequences, *everyone)
    _, yielded = running_sequences.allocate_for_decodes(everyone[:1])
    assert [s.id for s in yielded] == [2]


def test_first_sequence_is_never_preempted():
    running_sequences = make_running_sequences(num_blocks=2)
    first, last = make_sequence(1), make_sequence(2)
    enter_computed(running_sequences, first, last)
    _, yielded = running_sequences.allocate_for_decodes([first, last])
    assert yielded == [last]
    assert len(first.blocks) == 2


def test_often_preempted_sequence_gets_all_blocks_it_can_need():
    running_sequences, sequence = make_running_sequences(), make_sequence(1, output=64)
    sequence.num_preemptions = SETTINGS.max_preemptions
    running_sequences.enter_batch(sequence, running_sequences.make_empty_batch())
    assert len(sequence.blocks) == running_sequences.max_blocks_of(sequence) == 5


def test_often_preempted_sequence_is_not_preempted_again():
    running_sequences = make_running_sequences(num_blocks=8)
    first, settled, last = make_sequence(1), make_sequence(2, output=48), make_sequence(3)
    settled.num_preemptions = SETTINGS.max_preemptions
    enter_computed(running_sequences, first, settled, last)
    running_sequences.block_pool.allocate(running_sequences.block_pool.num_free)
    _, yielded = running_sequences.allocate_for_decodes([first])
    assert yielded == [last]


def test_no_sequence_enters_that_could_not_finish_beside_an_unpreemptible_one():
    running_sequences, settled = make_running_sequences(num_blocks=10), make_sequence(1, output=64)
    settled.num_preemptions = SETTINGS.max_preemptions
    enter_computed(running_sequences, settled)
    assert running_sequences.has_room_for(make_sequence(2, output=65))
    assert not running_sequences.has_room_for(make_sequence(2, output=66))


def test_removed_sequence_causes_one_filter():
    running_sequences, first = make_running_sequences(), make_sequence(1)
    batch = enter_computed(running_sequences, first, make_sequence(2))
    running_sequences.remove_sequence(first, SequenceState.FINISHED)
    assert batch.needs_filter
    assert running_sequences.take_pending_filters() == [Filter(batch.id, (2,))]
    assert not batch.needs_filter


def test_removing_the_last_sequence_filters_all():
    running_sequences, sequence = make_running_sequences(), make_sequence(1)
    batch = enter_computed(running_sequences, sequence)
    running_sequences.remove_sequence(sequence, SequenceState.FINISHED)
    assert running_sequences.take_pending_filters() == [Filter(batch.id, ())]


def test_removed_sequence_causes_a_filter_and_frees_its_blocks():
    running_sequences, sequence = make_running_sequences(), make_sequence(1)
    enter_computed(running_sequences, sequence, make_sequence(2))
    running_sequences.remove_sequence(sequence, SequenceState.FINISHED)
    (owed,) = running_sequences.take_pending_filters()
    assert owed.keep == (2,)
    assert running_sequences.block_pool.num_free == 19


def test_empty_batch_is_removed():
    running_sequences, sequence = make_running_sequences(), make_sequence(1)
    enter_computed(running_sequences, sequence)
    running_sequences.remove_sequence(sequence, SequenceState.FINISHED)
    running_sequences.take_pending_filters()
    assert running_sequences.batches == []


def test_concatenated_batch_keeps_the_first_number():
    running_sequences = make_running_sequences()
    first, second = enter_computed(running_sequences,
                                   make_sequence(1)), enter_computed(running_sequences, make_sequence(2))
    assert running_sequences.concat_batches() == (first.id, second.id)
    assert [batch.id for batch in running_sequences.batches] == [first.id]
    assert len(running_sequences) == 2


def test_absorbing_a_batch_keeps_the_order():
    running_sequences = make_running_sequences()
    batch = enter_computed(running_sequences, make_sequence(1), make_sequence(2))
    enter_computed(running_sequences, make_sequence(3))
    running_sequences.concat_batches()
    assert [sequence.id for sequence in batch] == [1, 2, 3]


# -- sharing


def make_sharing_sequence(number, prompt=48, output=16, tenant="many"):
    request = Request(str(number), tuple(range(prompt)), output, tenant=Tenant(tenant))
    return Sequence(add_block_hashes(request, 16), number, float(number))


def test_blocks_of_a_finishing_sequence_go_to_growing_ones_but_not_to_new_ones():
    running_sequences, ends, grows = (make_running_sequences(num_blocks=6, reserved_block_fraction=0.0),
                                      make_sharing_sequence(1, prompt=32, output=1), make_sequence(2, prompt=47))
    batch = running_sequences.make_empty_batch()
    running_sequences.enter_batch(ends, batch)
    ends.num_scheduled_tokens, ends.num_outputs_in_flight = ends.num_tokens_to_prefill, 1
    enter_computed(running_sequences, grows)
    running_sequences.remove_finishing_sequence(ends)
    assert (running_sequences.block_pool.num_free, ends.state) == (1, SequenceState.FINISHING)
    running_sequences.block_pool.allocate(1)
    add_token(grows)
    assert running_sequences.allocate_for_decodes([grows])[1] == []
    assert not ends.blocks


def test_finishing_sequence_that_fills_no_further_block_frees_its_blocks_at_once():
    running_sequences, sequence = make_running_sequences(), make_sharing_sequence(1, prompt=40, output=2)
    enter_computed(running_sequences, sequence)
    running_sequences.cache_full_blocks(sequence, 40)
    sequence.num_outputs_in_flight = 1
    running_sequences.remove_finishing_sequence(sequence)
    assert running_sequences.block_pool.num_free == running_sequences.block_pool.num_blocks


def test_shared_blocks_count_as_free_if_both_users_are_preempted():
    running_sequences = make_running_sequences(num_blocks=9, reserved_block_fraction=0.0)
    everyone = [make_sequence(0), make_sharing_sequence(1, prompt=16), make_sharing_sequence(2, prompt=16),
                make_sharing_sequence(3, prompt=65), make_sharing_sequence(4, prompt=65)]
    batch = running_sequences.make_empty_batch()
    for sequence in everyone:
        running_sequences.enter_batch(sequence, batch)
        running_sequences.cache_full_blocks(sequence, len(sequence.request.prompt))
    assert running_sequences.block_pool.num_free == 1
    assert (running_sequences.choose_fair_preemptions(make_sharing_sequence(5, prompt=48, tenant="few"))
            == [everyone[4], everyone[3]])


def test_block_tables_include_those_of_finishing_sequences():
    running_sequences, runs = make_running_sequences(), make_sequence(2)
    ends = make_sharing_sequence(1, prompt=32, output=1)
    running_sequences.enter_batch(ends, running_sequences.make_empty_batch())
    ends.num_scheduled_tokens, ends.num_outputs_in_flight = ends.num_tokens_to_prefill, 1
    enter_computed(running_sequences, runs)
    running_sequences.remove_finishing_sequence(ends)
    assert running_sequences.list_block_tables() == {1: ends.blocks, 2: runs.blocks}
    assert ends.blocks
    running_sequences.free_blocks(ends)
    assert running_sequences.list_block_tables() == {2: runs.blocks}
