"""The core, one decision per test. Random histories are in test_laws.py and tests/test_simulation.py."""

from dataclasses import replace

import pytest

from router.model_info import ModelInfo
from router.request import FinishReason, LoadableResource, Request, RequestKind
from router.scheduler.cost_model import CostModel
from router.scheduler.events import RequestAccepted, RequestRejected, SequenceFailed, SequenceFinished, TokensGenerated
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Concat, Decode, Filter, Prefill, PrefillChunk, StepResult, StepResultRow
from router.scheduler.step import find_finish_point
from router.scheduler.waiting_sequence_selector import MAX_EXAMINED_SEQUENCES

MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 64)
END_TOKEN = 256


def make_scheduler(model_info=MODEL_INFO, **settings):
    core = Scheduler(replace(SchedulerSettings(max_stall_seconds=10.0), **settings), model_info)
    core.on_shards_ready(model_info, 1, 0.0)
    return core


def submit(core, prompt=16, output=8, now=0.0, **fields):
    request = Request(str(now), (1,) * prompt, output, end_tokens=frozenset({END_TOKEN}), **fields)
    events = core.submit(request, now)
    return events[0].sequence_id


def make_result(plan, tokens=(7,), **token_overrides):
    """Answer each expected sequence with `tokens`, or with the value of s<number>, where None means a failure."""
    rows = {n: token_overrides.get(f"s{n}", tokens) for n in plan.output_ids}
    return StepResult(plan.epoch, 0.01, {n: StepResultRow(t, [0.0] * len(t)) for n, t in rows.items() if t is not None},
                      {n: "not a number" for n, t in rows.items() if t is None})


def complete_step(core, plan, stopped=None, tokens=(7,), **token_overrides):
    result = make_result(plan, tokens, **token_overrides)
    return core.complete_step(plan.last_message_number, result, stopped or {}, 0.0)


def run_step(core, **token_overrides):
    """Plan and answer one step."""
    plan = core.plan(0.0)
    return plan, complete_step(core, plan, **token_overrides)


def test_idle_scheduler_has_no_plan():
    assert make_scheduler().plan(0.0) is None


def test_resumed_tokens_are_prefilled_behind_the_prompt():
    core = make_scheduler(look_ahead=1)
    number = submit(core, prompt=20, output=8, resumed_tokens=(5, 6, 7))
    plan, events = run_step(core)
    assert plan.messages[0].chunks == (PrefillChunk(number, 0, 23),)
    assert plan.messages[0].new_sequences[0].generated == (5, 6, 7)
    assert events == [TokensGenerated({number: 1})]


def test_resumed_tokens_count_toward_the_length():
    core = make_scheduler(look_ahead=1)
    number = submit(core, output=4, resumed_tokens=(5, 6, 7))
    assert run_step(core)[1] == [TokensGenerated({number: 1}), SequenceFinished(number, FinishReason.LENGTH)]


def test_a_prompt_is_prefilled_and_then_decoded():
    core = make_scheduler(look_ahead=1)
    number = submit(core, prompt=20)
    (plan, events), (following, _) = run_step(core), run_step(core)
    assert plan.messages[0].chunks == (PrefillChunk(number, 0, 20),)
    assert events == [TokensGenerated({number: 1})]
    assert following.messages == (Decode(plan.messages[0].batch),)


def test_new_sequences_run_alongside_decodes():
    core = make_scheduler(look_ahead=1)
    first = submit(core)
    run_step(core)
    second = submit(core)
    plan = core.plan(0.0)
    (message,) = plan.messages
    assert message.includes_decodes
    assert set(plan.output_ids) == {first, second}


def test_timed_out_sequence_ends_after_a_shard_loss_instead_of_running_again():
    core = make_scheduler(look_ahead=1)
    number = submit(core, timeout=5.0)
    run_step(core)
    assert core.on_timer(6.0) == []  # the sequence is running, so it ends with its next token
    core.on_shards_lost(ShardLossReason.DEATH, 6.0)
    assert core.wake_at == 5.0
    assert core.on_timer(6.0) == [SequenceFinished(number, FinishReason.TIMEOUT)]


def test_timed_out_sequence_without_tokens_expires_after_a_shard_loss():
    core = make_scheduler(look_ahead=1)
    number = submit(core, timeout=5.0)
    core.plan(0.0)
    assert core.on_timer(6.0) == []
    core.on_shards_lost(ShardLossReason.DEATH, 6.0)
    assert [event.sequence_id for event in core.on_timer(6.0)] == [number]


def test_timed_out_sequence_ends_when_it_is_suspended():
    core = make_scheduler(look_ahead=1)
    number = submit(core, timeout=5.0)
    run_step(core)
    assert core.on_timer(6.0) == []
    core.suspend(number, 6.0)
    assert core.on_timer(6.0) == [SequenceFinished(number, FinishReason.TIMEOUT)]


def test_no_more_steps_than_look_ahead_are_in_flight():
    core = make_scheduler(look_ahead=2)
    submit(core)
    assert core.plan(0.0) is not None
    assert core.plan(0.0) is not None
    assert core.plan(0.0) is None


def test_request_beyond_the_concurrency_limit_is_rejected():
    core = make_scheduler(max_concurrent_requests=1)
    submit(core)
    (refused,) = core.submit(Request("x", (1,), 1), 0.0)
    assert isinstance(refused, RequestRejected)
    assert "--max-concurrent-requests 1" in refused.reason


def test_request_that_never_fits_the_cache_fails_at_once():
    core = make_scheduler()
    entered, failed = core.submit(Request("x", (1,) * 1000, 100), 0.0)
    assert isinstance(entered, RequestAccepted)
    assert failed.reason == "1100 tokens need 69 blocks of the cache, which has 64 (--max-batch-total-tokens)"
    assert core.num_unfinished == 0


# -- two steps under way (rule 2 of the wire)


def test_sequence_that_reaches_its_length_is_filtered_before_the_next_step():
    core = make_scheduler()
    short, long = submit(core, output=1), submit(core, output=8)
    first, second = core.plan(0.0), core.plan(0.0)
    assert set(first.output_ids) == {short, long}
    assert second.messages[0].keep == (long,)
    assert complete_step(core, first) == [TokensGenerated({short: 1, long: 1}),
                                          SequenceFinished(short, FinishReason.LENGTH)]


def test_tokens_in_flight_after_an_end_token_are_discarded():
    core = make_scheduler()
    number = submit(core)
    first, second = core.plan(0.0), core.plan(0.0)
    assert complete_step(core, first, tokens=(END_TOKEN,)) == [TokensGenerated({number: 1}),
                                                               SequenceFinished(number, FinishReason.END_TOKEN)]
    third = core.plan(0.0)
    assert third.messages == (Filter(first.messages[0].batch, ()),)
    assert complete_step(core, second) == [TokensGenerated({})]


def test_failure_of_an_already_finished_sequence_is_ignored():
    core = make_scheduler()
    number = submit(core)
    first, second = core.plan(0.0), core.plan(0.0)
    complete_step(core, first, tokens=(END_TOKEN,))
    assert complete_step(core, second, **{f"s{number}": None}) == [TokensGenerated({})]


def test_stop_string_counts_the_tokens_given_by_the_engine():
    core = make_scheduler(replace(MODEL_INFO, tokens_per_step=3), look_ahead=1)
    number = submit(core)
    plan = core.plan(0.0)
    events = complete_step(core, plan, stopped={number: 2}, tokens=(5, 6, 7))
    assert events == [TokensGenerated({number: 2}), SequenceFinished(number, FinishReason.STOP_STRING)]


def test_cancelled_sequence_is_filtered_with_the_next_message_and_frees_its_blocks():
    core = make_scheduler()
    stays, leaves = submit(core), submit(core, prompt=600)
    core.plan(0.0)
    core.cancel(leaves, 0.0)
    newcomer = submit(core, prompt=600)
    second = core.plan(0.0)
    (message,) = second.messages
    assert message.keep == (stays,)
    assert message.new_sequences[0].sequence_id == newcomer


def test_preempted_sequence_may_finish_with_the_token_in_flight():
    core = make_scheduler(replace(MODEL_INFO, num_blocks=4), reserved_block_fraction=0.0)
    old, young = submit(core, prompt=16, output=40), submit(core, prompt=16, output=40, now=1.0)
    plans = [core.plan(0.0), core.plan(0.0)]
    assert set(plans[0].output_ids) == {old, young}
    yielded = None
    while yielded is None:
        events = complete_step(core, plans.pop(0))
        assert old in events[0].token_counts
        plans.append(core.plan(0.0))
        yielded = plans[-1] if young not in plans[-1].output_ids else None
    assert yielded.messages[0].keep == (old,)
    events = complete_step(core, plans[0], **{f"s{young}": (END_TOKEN,)})
    assert SequenceFinished(young, FinishReason.END_TOKEN) in events


def test_failed_step_voids_the_steps_sent_ahead():
    core = make_scheduler()
    submit(core)
    first, second = core.plan(0.0), core.plan(0.0)
    core.on_shards_lost(ShardLossReason.DEFECT, 0.0)
    core.on_shards_ready(MODEL_INFO, 2, 0.0)
    assert complete_step(core, first) == []
    assert complete_step(core, second) == []
    assert core.plan(0.0).epoch == 2


# -- accepted tokens


@pytest.mark.parametrize(("tokens", "stop", "counted", "reason"), [
    ((5,), None, 1, None),
    ((5, 6, 7, 8), None, 3, FinishReason.LENGTH),
    ((5, END_TOKEN, 7), None, 2, FinishReason.END_TOKEN),
    ((5, 6), 1, 1, FinishReason.STOP_STRING),
    ((5, 6, END_TOKEN), None, 3, FinishReason.LENGTH),  # the length takes precedence, as in TGI
])
def test_accepted_tokens_and_finish_reason_are_determined(tokens, stop, counted, reason):
    request = Request("x", (1,), 3, end_tokens=frozenset({END_TOKEN}))
    assert find_finish_point(request, 0, tokens, stop) == (counted, reason)


def test_failure_of_one_sequence_leaves_the_others_their_tokens():
    core = make_scheduler()
    good, bad = submit(core), submit(core)
    plan = core.plan(0.0)
    assert complete_step(core, plan,
                         **{f"s{bad}": None}) == [TokensGenerated({good: 1}), SequenceFailed(bad, "not a number")]


# -- policy pause


def test_pause_policy_prefills_new_sequences_in_their_own_batch_and_joins_it():
    core = make_scheduler(mixed=False, look_ahead=1)
    submit(core)
    first, _ = run_step(core)
    submit(core)
    run_step(core)  # a prefilled batch decodes before the next prefill
    second, _ = run_step(core)
    third, _ = run_step(core)
    first_batch, second_batch = first.messages[0].batch, second.messages[0].batch
    assert isinstance(second.messages[0], Prefill)
    assert first_batch != second_batch
    assert third.messages[0] == Concat((first_batch, second_batch))
    assert isinstance(third.messages[1], Decode)
    assert third.messages[1].batch == first_batch


def test_pause_policy_decodes_between_two_chunks_of_a_long_prompt():
    core = make_scheduler(mixed=False, look_ahead=1, max_prefill_tokens=32)
    submit(core)
    run_step(core)
    run_step(core)
    submit(core, prompt=80)
    kinds = [type(run_step(core)[0].messages[-1]) for _ in range(6)]
    assert kinds == [Prefill, Decode, Prefill, Decode, Prefill, Decode]


def test_pause_policy_cuts_only_prompts_longer_than_the_budget():
    core = make_scheduler(mixed=False, look_ahead=1, max_prefill_tokens=64)
    first, second = submit(core, prompt=40), submit(core, prompt=40)
    plan, _ = run_step(core)
    assert [chunk.sequence_id for chunk in plan.messages[0].chunks] == [first]
    assert second not in plan.member_ids


class FixedCostModel(CostModel):
    def observe(self, load, seconds):
        return 1.0


def test_rest_below_a_block_is_kept_for_the_only_prompt():
    """Regression: while no other prompt waited, what a step earned beyond whole blocks was forgotten."""
    core = make_scheduler(look_ahead=1, max_stall_seconds=0.0)
    core.cost_model = FixedCostModel((12.0, 0.0, 1.0, 0.0))  # a step earns 24 seconds, of which a block takes 16
    submit(core, output=100)
    run_step(core)
    submit(core, prompt=640)
    assert [run_step(core)[0].messages[-1].chunks[0].length for _ in range(8)] == [16, 32, 16, 32, 16, 32, 16, 32]


def test_nothing_is_kept_for_the_prompt_after_the_last_one():
    core = make_scheduler(look_ahead=1, max_stall_seconds=0.0)
    core.cost_model = FixedCostModel((12.0, 0.0, 1.0, 0.0))
    submit(core, output=100)
    run_step(core)
    submit(core, prompt=24)
    assert run_step(core)[0].messages[-1].chunks[0].length == 24
    submit(core, prompt=60)
    assert run_step(core)[0].messages[-1].chunks[0].length == 16


@pytest.mark.parametrize(("batch", "prompt", "expected"), [(64, 16, 20), (8, 16, 7), (64, 160, 6)])
def test_num_fitting_is_bounded_by_batch_size_and_cache(batch, prompt, expected):
    core = make_scheduler(max_batch_size=batch)
    submit(core)
    run_step(core)
    for _ in range(20):
        submit(core, prompt=prompt)
    assert core.num_fitting() == expected


def test_num_fitting_ignores_pooling_and_requests_waiting_for_adapters():
    core = make_scheduler()
    for fields in ({"kind": RequestKind.EMBED}, {"adapter": ADAPTER},
                   {"kind": RequestKind.EMBED, "adapter": ADAPTER}, {}):
        submit(core, output=0 if "kind" in fields else 8, **fields)
    assert core.num_fitting() == 1


def test_num_fitting_ignores_suspended_sequences():
    core = make_scheduler()
    for number in range(3):
        core.suspend(submit(core, now=float(number)), 0.0)
    submit(core)
    assert core.num_fitting() == 1


def test_num_fitting_counts_only_suspects_while_they_run_apart():
    core = make_scheduler(look_ahead=1)
    for number in range(4):
        submit(core, now=float(number))
    run_step(core)
    core.plan(0.0)
    fail_step(core, 2)
    submit(core, now=4.0)
    assert core.num_fitting() == 2
    run_step(core)
    assert core.num_fitting() == 2  # the second half
    run_step(core)
    assert core.num_fitting() == 1


def test_streams_whose_clients_do_not_read_do_not_lengthen_the_chunks_of_others():
    """Regression: a prompt beside one decode got as much time as if all of them waited for it."""
    def get_chunk_length(num_suspended):
        core = make_scheduler(replace(MODEL_INFO, num_blocks=1000), look_ahead=1, max_stall_seconds=0.0,
                              max_prefill_tokens=4096)
        submit(core, output=100)
        run_step(core)
        for _ in range(num_suspended):
            core.suspend(submit(core), 0.0)
        submit(core, prompt=3000)
        plan, _ = run_step(core)
        return plan.messages[0].chunks[0].length
    assert get_chunk_length(num_suspended=20) == get_chunk_length(num_suspended=0) < 3000


@pytest.mark.parametrize("held", [False, True])
def test_pause_policy_counts_only_startable_requests_as_waiting(held):
    """Otherwise a few requests that wait for something else would pause the running ones for each newcomer."""
    core = make_scheduler(mixed=False, look_ahead=1, waiting_served_ratio=1.0, max_batch_size=3)
    for _ in range(2):
        submit(core, output=50)
    for _ in range(3):
        run_step(core)
    for _ in range(4):
        number = submit(core, adapter=None if held else LoadableResource("adapter", 3))
        if held:
            core.suspend(number, 0.0)
    submit(core)
    assert core.num_waiting_for_room() == 1
    assert isinstance(run_step(core)[0].messages[-1], Decode)


# -- waiting for adapters and readers


ADAPTER = LoadableResource("adapter", 3)


def test_request_waits_for_its_adapter_while_others_pass():
    core = make_scheduler(look_ahead=1)
    waits, passes = submit(core, adapter=ADAPTER), submit(core)
    assert core.plan(0.0).output_ids == (passes,)
    assert waits


def test_request_starts_when_its_adapter_is_loaded():
    core = make_scheduler()
    number = submit(core, adapter=ADAPTER)
    assert core.plan(0.0) is None
    core.on_resource_loaded(ADAPTER, 0.0)
    assert core.plan(0.0).output_ids == (number,)


def test_request_fails_if_its_adapter_cannot_be_loaded():
    core = make_scheduler()
    number = submit(core, adapter=ADAPTER)
    assert core.on_resource_failed(ADAPTER, "no such adapter", 0.0) == [SequenceFailed(number, "no such adapter")]


def test_adapter_is_absent_after_a_shard_death():
    core = make_scheduler()
    core.on_resource_loaded(ADAPTER, 0.0)
    core.on_shards_lost(ShardLossReason.DEATH, 0.0)
    core.on_shards_ready(MODEL_INFO, 2, 0.0)
    submit(core, adapter=ADAPTER)
    assert core.plan(0.0) is None


def test_suspended_sequence_gives_up_its_blocks_and_resumes():
    core = make_scheduler()
    number = submit(core)
    plan = core.plan(0.0)
    core.suspend(number, 0.0)
    assert core.plan(0.0).messages == (Filter(plan.messages[0].batch, ()),)
    complete_step(core, plan)
    assert core.running.block_pool.num_free == 64
    core.resume(number, 0.0)
    (message,) = core.plan(0.0).messages
    assert message.new_sequences[0].generated == (7,)


# -- losses


def test_sequence_continues_with_its_tokens_after_a_shard_loss():
    core = make_scheduler(look_ahead=1)
    number = submit(core, prompt=20)
    run_step(core)
    run_step(core)
    core.on_shards_lost(ShardLossReason.DEATH, 0.0)
    core.on_shards_ready(MODEL_INFO, 2, 0.0)
    plan = core.plan(0.0)
    (newcomer,) = plan.messages[0].new_sequences
    assert (newcomer.generated, plan.messages[0].chunks) == ((7, 7), (PrefillChunk(number, 0, 22),))
    assert (plan.epoch, plan.last_message_number) == (2, 1)


def test_step_error_is_retried_in_halves_until_one_sequence_fails_alone():
    core = make_scheduler(look_ahead=1)
    everyone = [submit(core, now=float(n)) for n in range(4)]
    guilty, failed, epoch = everyone[2], [], 1
    while not failed:
        plan = core.plan(0.0)
        if guilty in plan.member_ids:
            epoch += 1
            failed = core.on_shards_lost(ShardLossReason.STEP_ERROR, 0.0)
            core.on_shards_ready(MODEL_INFO, epoch, 0.0)
        else:
            complete_step(core, plan)
    assert [event.sequence_id for event in failed] == [guilty]
    assert core.num_unfinished == 3


def test_out_of_memory_halves_the_step_size_without_blame():
    core = make_scheduler(look_ahead=1, max_prefill_tokens=200, max_batch_size=8)
    number, sizes = submit(core, prompt=190), []
    for epoch in (2, 3, 4, 5):
        sizes.append(sum(chunk.length for chunk in core.plan(0.0).messages[0].chunks))
        assert core.on_shards_lost(ShardLossReason.MEMORY, 0.0) == []
        core.on_shards_ready(MODEL_INFO, epoch, 0.0)
        if core.settings.max_prefill_tokens == 8 + MODEL_INFO.block_size:
            break
    assert sizes == [190, 96, 48, 16]
    core.plan(0.0)
    failed = core.on_shards_lost(ShardLossReason.MEMORY, 0.0)
    assert [event.sequence_id for event in failed] == [number]


def test_pooling_input_that_no_longer_fits_a_step_fails_with_the_reason():
    core = make_scheduler(look_ahead=1, max_prefill_tokens=200, max_batch_size=8)
    number = submit(core, prompt=190, output=0, kind=RequestKind.EMBED)
    core.plan(0.0)
    core.on_shards_lost(ShardLossReason.MEMORY, 0.0)
    failed, = core.on_shards_ready(MODEL_INFO, 2, 0.0)
    assert (failed.sequence_id, failed.reason) == (
        number, "190 tokens do not fit a step of 100 (--max-batch-prefill-tokens)")


def lose_shards(core, epoch):
    core.plan(0.0)
    events = core.on_shards_lost(ShardLossReason.DEATH, 0.0)
    core.on_shards_ready(MODEL_INFO, epoch, 0.0)
    return events


def test_sequence_is_isolated_after_two_deaths_and_fails_at_the_third():
    core = make_scheduler(look_ahead=1)
    number = submit(core)
    assert lose_shards(core, 2) == []
    assert lose_shards(core, 3) == []
    submit(core, now=1.0)
    (failed,) = lose_shards(core, 4)
    assert failed.sequence_id == number
    assert "died 3 times" in failed.reason


def test_accepted_token_clears_a_sequence_of_deaths():
    core = make_scheduler(look_ahead=1)
    submit(core)
    lose_shards(core, 2)
    lose_shards(core, 3)
    run_step(core)
    assert lose_shards(core, 4) == []


def test_sequence_that_no_longer_fits_smaller_shards_fails():
    core = make_scheduler()
    number = submit(core, prompt=600, output=8)
    core.on_shards_lost(ShardLossReason.DEATH, 0.0)
    (failed,) = core.on_shards_ready(replace(MODEL_INFO, num_blocks=32), 2, 0.0)
    assert failed.sequence_id == number


def test_later_request_does_not_start_in_the_place_of_a_preempted_one():
    core = make_scheduler(replace(MODEL_INFO, num_blocks=6), reserved_block_fraction=0.0, max_batch_size=2)
    submit(core, prompt=32, output=60)
    old, young = submit(core, prompt=32, output=60, now=1.0), submit(core, prompt=1, output=1, now=2.0)
    plans = [core.plan(0.0), core.plan(0.0)]
    while old in plans[-1].output_ids:
        complete_step(core, plans.pop(0))
        plans.append(core.plan(0.0))
    assert young not in plans[-1].member_ids


def fail_step(core, epoch):
    """Fail the step under way and reset the shards."""
    events = core.on_shards_lost(ShardLossReason.STEP_ERROR, 0.0)
    core.on_shards_ready(MODEL_INFO, epoch, 0.0)
    return events


def test_last_sequence_of_a_failed_step_is_tried_alone_before_it_fails():
    core = make_scheduler(look_ahead=1)
    stays, leaves = submit(core), submit(core)
    core.plan(0.0)
    core.cancel(leaves, 0.0)
    assert fail_step(core, 2) == []
    core.plan(0.0)
    assert [event.sequence_id for event in fail_step(core, 3)] == [stays]


def test_suspended_suspect_does_not_block_other_requests():
    core = make_scheduler(look_ahead=1)
    held, *others = [submit(core, now=float(n)) for n in range(4)]
    core.plan(0.0)
    core.suspend(held, 0.0)
    fail_step(core, 2)
    served = set()
    for _ in range(3):
        plan = core.plan(0.0)
        served |= set(plan.member_ids)
        complete_step(core, plan)
    assert served == set(others)


def test_suspect_without_its_adapter_does_not_block_other_requests():
    core = make_scheduler(look_ahead=1)
    core.on_resource_loaded(ADAPTER, 0.0)
    submit(core, adapter=ADAPTER)
    lose_shards(core, 2)
    core.on_resource_loaded(ADAPTER, 0.0)
    lose_shards(core, 3)
    newcomer = submit(core, now=1.0)
    assert core.plan(0.0).member_ids == (newcomer,)


def test_failed_resource_fails_its_running_requests():
    core = make_scheduler()
    core.on_resource_loaded(ADAPTER, 0.0)
    number = submit(core, adapter=ADAPTER)
    core.plan(0.0)
    assert core.on_resource_failed(ADAPTER, "it was removed", 0.0) == [SequenceFailed(number, "it was removed")]
    assert core.num_unfinished == 0


def test_many_suspended_requests_do_not_hide_later_ones():
    core = make_scheduler()
    for number in range(MAX_EXAMINED_SEQUENCES):
        core.suspend(submit(core, now=float(number)), 0.0)
    newcomer = submit(core, now=1000.0)
    assert core.plan(0.0).member_ids == (newcomer,)
