"""The core, one decision per test. Random histories are in test_laws.py and tests/test_simulation.py."""

from dataclasses import replace

import pytest

from router.request import FinishReason, Request, Resource, Wish
from router.scheduler.events import Entered, Failed, Finished, Produced, Refused
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, AnswerRow, Chunk, Concat, Decode, Filter, ModelFacts, Prefill
from router.scheduler.scheduler import Scheduler
from router.scheduler.selection import LOOKED_AT
from router.scheduler.settings import Policy
from router.text.stop_strings import count_tokens

FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 64)
END = 256


def scheduler(facts=FACTS, **policy):
    core = Scheduler(replace(Policy(stall_seconds=10.0), **policy), facts)
    core.shards_ready(facts, 1, 0.0)
    return core


def submit(core, prompt=16, output=8, now=0.0, **fields):
    request = Request(str(now), (1,) * prompt, output, end_tokens=frozenset({END}), **fields)
    events = core.submit(request, now)
    return events[0].sequence


def answer(plan, tokens=(7,), **special):
    """Answer each expected sequence with `tokens`, or with the value of s<number>, where None means a failure."""
    rows = {n: special.get(f"s{n}", tokens) for n in plan.expects}
    return Answer(plan.epoch, 0.01, {n: AnswerRow(t, [0.0] * len(t)) for n, t in rows.items() if t is not None},
                  {n: "not a number" for n, t in rows.items() if t is None})


def complete(core, plan, stopped=None, tokens=(7,), **special):
    return core.complete(plan.order, answer(plan, tokens, **special), stopped or {}, 0.0)


def step(core, **special):
    """Plan and answer one step."""
    plan = core.plan(0.0)
    return plan, complete(core, plan, **special)


def test_nothing_to_do_is_no_plan():
    assert scheduler().plan(0.0) is None


def test_a_prompt_is_prefilled_and_then_decoded():
    core = scheduler(look_ahead=1)
    number = submit(core, prompt=20)
    (plan, events), (following, _) = step(core), step(core)
    assert plan.messages[0].chunks == (Chunk(number, 0, 20),)
    assert events == [Produced({number: 1})]
    assert following.messages == (Decode(plan.messages[0].batch),)


def test_newcomers_run_alongside_who_decodes():
    core = scheduler(look_ahead=1)
    first = submit(core)
    step(core)
    second = submit(core)
    plan = core.plan(0.0)
    (message,) = plan.messages
    assert message.alongside
    assert set(plan.expects) == {first, second}


def test_who_lost_its_place_after_its_time_ran_out_ends_before_it_runs_again():
    core = scheduler(look_ahead=1)
    number = submit(core, timeout=5.0)
    step(core)
    assert core.expire(6.0) == []  # it runs, and would end with its next token
    core.shards_lost(6.0, Loss.DEATH)
    assert core.wake_at == 5.0
    assert core.expire(6.0) == [Finished(number, FinishReason.TIMEOUT)]


def test_whose_first_token_was_on_its_way_when_its_time_ran_out_and_the_shards_were_lost_is_told_so():
    core = scheduler(look_ahead=1)
    number = submit(core, timeout=5.0)
    core.plan(0.0)
    assert core.expire(6.0) == []
    core.shards_lost(6.0, Loss.DEATH)
    assert [event.sequence for event in core.expire(6.0)] == [number]


def test_who_gives_its_place_up_after_its_time_ran_out_ends_and_does_not_wait_for_another():
    core = scheduler(look_ahead=1)
    number = submit(core, timeout=5.0)
    step(core)
    assert core.expire(6.0) == []
    core.hold(number, 6.0)
    assert core.expire(6.0) == [Finished(number, FinishReason.TIMEOUT)]


def test_no_more_steps_than_look_ahead_are_under_way():
    core = scheduler(look_ahead=2)
    submit(core)
    assert core.plan(0.0) is not None
    assert core.plan(0.0) is not None
    assert core.plan(0.0) is None


def test_the_house_is_full_at_some_point():
    core = scheduler(max_concurrent_requests=1)
    submit(core)
    (refused,) = core.submit(Request("x", (1,), 1), 0.0)
    assert isinstance(refused, Refused)
    assert "--max-concurrent-requests 1" in refused.reason


def test_what_can_never_fit_the_cache_fails_at_once():
    core = scheduler()
    entered, failed = core.submit(Request("x", (1,) * 1000, 100), 0.0)
    assert isinstance(entered, Entered)
    assert failed.reason == "1100 tokens need 69 blocks of the cache, which has 64 (--max-batch-total-tokens)"
    assert core.num_unfinished == 0


# -- two steps under way (rule 2 of the wire)


def test_a_sequence_that_reaches_its_length_is_filtered_before_the_next_step():
    core = scheduler()
    short, long = submit(core, output=1), submit(core, output=8)
    first, second = core.plan(0.0), core.plan(0.0)
    assert set(first.expects) == {short, long}
    assert second.messages[0].keep == (long,)
    assert complete(core, first) == [Produced({short: 1, long: 1}), Finished(short, FinishReason.LENGTH)]


def test_an_end_token_costs_at_most_the_token_under_way_and_nobody_sees_it():
    core = scheduler()
    number = submit(core)
    first, second = core.plan(0.0), core.plan(0.0)
    assert complete(core, first, tokens=(END,)) == [Produced({number: 1}), Finished(number, FinishReason.END_TOKEN)]
    third = core.plan(0.0)
    assert third.messages == (Filter(first.messages[0].batch, ()),)
    assert complete(core, second) == [Produced({})]


def test_a_failure_reported_for_one_who_ended_is_ignored():
    core = scheduler()
    number = submit(core)
    first, second = core.plan(0.0), core.plan(0.0)
    complete(core, first, tokens=(END,))
    assert complete(core, second, **{f"s{number}": None}) == [Produced({})]


def test_a_stop_string_counts_the_tokens_that_the_engine_says():
    core = scheduler(replace(FACTS, tokens_per_step=3), look_ahead=1)
    number = submit(core)
    plan = core.plan(0.0)
    events = complete(core, plan, stopped={number: 2}, tokens=(5, 6, 7))
    assert events == [Produced({number: 2}), Finished(number, FinishReason.STOP_STRING)]


def test_who_leaves_is_filtered_with_the_next_message_and_its_blocks_are_free():
    core = scheduler()
    stays, leaves = submit(core), submit(core, prompt=600)
    core.plan(0.0)
    core.cancel(leaves, 0.0)
    newcomer = submit(core, prompt=600)
    second = core.plan(0.0)
    (message,) = second.messages
    assert message.keep == (stays,)
    assert message.newcomers[0].sequence == newcomer


def test_who_yields_may_end_by_the_token_under_way():
    core = scheduler(replace(FACTS, num_blocks=4), reserve=0.0)
    old, young = submit(core, prompt=16, output=40), submit(core, prompt=16, output=40, now=1.0)
    plans = [core.plan(0.0), core.plan(0.0)]
    assert set(plans[0].expects) == {old, young}
    yielded = None
    while yielded is None:
        events = complete(core, plans.pop(0))
        assert old in events[0].counts
        plans.append(core.plan(0.0))
        yielded = plans[-1] if young not in plans[-1].expects else None
    assert yielded.messages[0].keep == (old,)
    events = complete(core, plans[0], **{f"s{young}": (END,)})
    assert Finished(young, FinishReason.END_TOKEN) in events


def test_a_failed_step_voids_what_was_sent_ahead():
    core = scheduler()
    submit(core)
    first, second = core.plan(0.0), core.plan(0.0)
    core.shards_lost(0.0, Loss.DEFECT)
    core.shards_ready(FACTS, 2, 0.0)
    assert complete(core, first) == []
    assert complete(core, second) == []
    assert core.plan(0.0).epoch == 2


# -- accepted tokens


@pytest.mark.parametrize(("tokens", "stop", "counted", "reason"), [
    ((5,), None, 1, None),
    ((5, 6, 7, 8), None, 3, FinishReason.LENGTH),
    ((5, END, 7), None, 2, FinishReason.END_TOKEN),
    ((5, 6), 1, 1, FinishReason.STOP_STRING),
    ((5, 6, END), None, 3, FinishReason.LENGTH),  # the length takes precedence, as in TGI
])
def test_how_many_tokens_count_and_why_it_ends(tokens, stop, counted, reason):
    request = Request("x", (1,), 3, end_tokens=frozenset({END}))
    assert count_tokens(request, 0, tokens, stop) == (counted, reason)


def test_a_failure_of_one_sequence_leaves_the_others_their_tokens():
    core = scheduler()
    good, bad = submit(core), submit(core)
    plan = core.plan(0.0)
    assert complete(core, plan, **{f"s{bad}": None}) == [Produced({good: 1}), Failed(bad, "not a number")]


# -- policy pause


def test_under_pause_newcomers_get_a_batch_of_their_own_and_join():
    core = scheduler(mixed=False, look_ahead=1)
    submit(core)
    first, _ = step(core)
    submit(core)
    step(core)  # a prefilled batch decodes before the next prefill
    second, _ = step(core)
    third, _ = step(core)
    one, two = first.messages[0].batch, second.messages[0].batch
    assert isinstance(second.messages[0], Prefill)
    assert one != two
    assert third.messages[0] == Concat((one, two))
    assert isinstance(third.messages[1], Decode)
    assert third.messages[1].batch == one


def test_under_pause_a_long_prompt_leaves_a_decode_between_two_chunks():
    core = scheduler(mixed=False, look_ahead=1, max_prefill_tokens=32)
    submit(core)
    step(core)
    step(core)
    submit(core, prompt=80)
    kinds = [type(step(core)[0].messages[-1]) for _ in range(6)]
    assert kinds == [Prefill, Decode, Prefill, Decode, Prefill, Decode]


def test_under_pause_only_a_prompt_longer_than_the_budget_is_cut():
    core = scheduler(mixed=False, look_ahead=1, max_prefill_tokens=64)
    first, second = submit(core, prompt=40), submit(core, prompt=40)
    plan, _ = step(core)
    assert [chunk.sequence for chunk in plan.messages[0].chunks] == [first]
    assert second not in plan.members


@pytest.mark.parametrize(("batch", "prompt", "expected"), [(64, 16, 20), (8, 16, 7), (64, 160, 6)])
def test_of_those_who_wait_so_many_have_room_as_batch_and_cache_can_take(batch, prompt, expected):
    core = scheduler(max_batch_size=batch)
    submit(core)
    step(core)
    for _ in range(20):
        submit(core, prompt=prompt)
    assert core.num_with_room() == expected


def test_who_waits_for_an_adapter_or_needs_no_room_does_not_count_as_having_room():
    core = scheduler()
    for fields in ({"wish": Wish.VECTOR}, {"adapter": ADAPTER}, {"wish": Wish.VECTOR, "adapter": ADAPTER}, {}):
        submit(core, output=0 if "wish" in fields else 8, **fields)
    assert core.num_with_room() == 1


@pytest.mark.parametrize("held", [False, True])
def test_under_pause_only_those_count_as_waiting_who_could_join(held):
    """Otherwise a few requests that wait for something else would pause the running ones for each newcomer."""
    core = scheduler(mixed=False, look_ahead=1, waiting_served_ratio=1.0, max_batch_size=3)
    for _ in range(2):
        submit(core, output=50)
    for _ in range(3):
        step(core)
    for _ in range(4):
        number = submit(core, adapter=None if held else Resource("adapter", 3))
        if held:
            core.hold(number, 0.0)
    submit(core)
    assert core.num_startable() == 1
    assert isinstance(step(core)[0].messages[-1], Decode)


# -- waiting for adapters and readers


ADAPTER = Resource("adapter", 3)


def test_a_request_waits_for_its_adapter_holding_nothing_and_others_pass():
    core = scheduler(look_ahead=1)
    waits, passes = submit(core, adapter=ADAPTER), submit(core)
    assert core.plan(0.0).expects == (passes,)
    assert waits


def test_it_starts_when_the_adapter_is_there():
    core = scheduler()
    number = submit(core, adapter=ADAPTER)
    assert core.plan(0.0) is None
    core.available(ADAPTER, 0.0)
    assert core.plan(0.0).expects == (number,)


def test_it_fails_when_the_adapter_is_not_to_be_had():
    core = scheduler()
    number = submit(core, adapter=ADAPTER)
    assert core.unavailable(ADAPTER, "no such adapter", 0.0) == [Failed(number, "no such adapter")]


def test_after_a_death_the_adapter_counts_as_absent():
    core = scheduler()
    core.available(ADAPTER, 0.0)
    core.shards_lost(0.0, Loss.DEATH)
    core.shards_ready(FACTS, 2, 0.0)
    submit(core, adapter=ADAPTER)
    assert core.plan(0.0) is None


def test_a_client_that_does_not_read_pauses_its_sequence():
    core = scheduler()
    number = submit(core)
    plan = core.plan(0.0)
    core.hold(number, 0.0)
    assert core.plan(0.0).messages == (Filter(plan.messages[0].batch, ()),)
    complete(core, plan)
    assert core.running.blocks.num_free == 64
    core.resume(number, 0.0)
    (message,) = core.plan(0.0).messages
    assert message.newcomers[0].generated == (7,)


# -- losses


def test_after_a_loss_a_sequence_goes_on_with_its_tokens():
    core = scheduler(look_ahead=1)
    number = submit(core, prompt=20)
    step(core)
    step(core)
    core.shards_lost(0.0, Loss.DEATH)
    core.shards_ready(FACTS, 2, 0.0)
    plan = core.plan(0.0)
    (newcomer,) = plan.messages[0].newcomers
    assert (newcomer.generated, plan.messages[0].chunks) == ((7, 7), (Chunk(number, 0, 22),))
    assert (plan.epoch, plan.order) == (2, 1)


def test_a_step_error_is_retried_in_halves_until_one_alone_fails():
    core = scheduler(look_ahead=1)
    everyone = [submit(core, now=float(n)) for n in range(4)]
    guilty, failed, epoch = everyone[2], [], 1
    while not failed:
        plan = core.plan(0.0)
        if guilty in plan.members:
            epoch += 1
            failed = core.shards_lost(0.0, Loss.STEP_ERROR)
            core.shards_ready(FACTS, epoch, 0.0)
        else:
            complete(core, plan)
    assert [event.sequence for event in failed] == [guilty]
    assert core.num_unfinished == 3


def test_steps_are_smaller_once_there_was_no_memory_for_one_and_nobody_is_to_blame():
    core = scheduler(look_ahead=1, max_prefill_tokens=200, max_batch_size=8)
    number, sizes = submit(core, prompt=190), []
    for epoch in (2, 3, 4, 5):
        sizes.append(sum(chunk.length for chunk in core.plan(0.0).messages[0].chunks))
        assert core.shards_lost(0.0, Loss.MEMORY) == []
        core.shards_ready(FACTS, epoch, 0.0)
        if core.policy.max_prefill_tokens == 8 + FACTS.block_size:
            break
    assert sizes == [190, 96, 48, 16]
    core.plan(0.0)
    failed = core.shards_lost(0.0, Loss.MEMORY)
    assert [event.sequence for event in failed] == [number]


def test_a_text_that_does_not_fit_a_smaller_step_fails_and_says_why():
    core = scheduler(look_ahead=1, max_prefill_tokens=200, max_batch_size=8)
    number = submit(core, prompt=190, output=0, wish=Wish.VECTOR)
    core.plan(0.0)
    core.shards_lost(0.0, Loss.MEMORY)
    failed, = core.shards_ready(FACTS, 2, 0.0)
    assert (failed.sequence, failed.reason) == (
        number, "190 tokens do not fit a step of 100 (--max-batch-prefill-tokens)")


def die(core, epoch):
    core.plan(0.0)
    events = core.shards_lost(0.0, Loss.DEATH)
    core.shards_ready(FACTS, epoch, 0.0)
    return events


def test_present_at_two_deaths_in_a_row_it_is_tried_alone_and_at_the_third_it_fails():
    core = scheduler(look_ahead=1)
    number = submit(core)
    assert die(core, 2) == []
    assert die(core, 3) == []
    submit(core, now=1.0)
    (failed,) = die(core, 4)
    assert failed.sequence == number
    assert "died 3 times" in failed.reason


def test_an_accepted_token_clears_it_of_deaths():
    core = scheduler(look_ahead=1)
    submit(core)
    die(core, 2)
    die(core, 3)
    step(core)
    assert die(core, 4) == []


def test_shards_that_come_back_smaller_fail_who_no_longer_fits():
    core = scheduler()
    number = submit(core, prompt=600, output=8)
    core.shards_lost(0.0, Loss.DEATH)
    (failed,) = core.shards_ready(replace(FACTS, num_blocks=32), 2, 0.0)
    assert failed.sequence == number


def test_nobody_who_came_later_starts_in_the_place_of_one_that_yields():
    core = scheduler(replace(FACTS, num_blocks=6), reserve=0.0, max_batch_size=2)
    submit(core, prompt=32, output=60)
    old, young = submit(core, prompt=32, output=60, now=1.0), submit(core, prompt=1, output=1, now=2.0)
    plans = [core.plan(0.0), core.plan(0.0)]
    while old in plans[-1].expects:
        complete(core, plans.pop(0))
        plans.append(core.plan(0.0))
    assert young not in plans[-1].members


def fail_step(core, epoch):
    """Fail the step under way and reset the shards."""
    events = core.shards_lost(0.0, Loss.STEP_ERROR)
    core.shards_ready(FACTS, epoch, 0.0)
    return events


def test_whoever_is_left_of_a_failed_step_is_not_guilty_before_it_failed_alone():
    core = scheduler(look_ahead=1)
    stays, leaves = submit(core), submit(core)
    core.plan(0.0)
    core.cancel(leaves, 0.0)
    assert fail_step(core, 2) == []
    core.plan(0.0)
    assert [event.sequence for event in fail_step(core, 3)] == [stays]


def test_a_suspect_whose_client_does_not_read_keeps_nobody_waiting():
    core = scheduler(look_ahead=1)
    held, *others = [submit(core, now=float(n)) for n in range(4)]
    core.plan(0.0)
    core.hold(held, 0.0)
    fail_step(core, 2)
    served = set()
    for _ in range(3):
        plan = core.plan(0.0)
        served |= set(plan.members)
        complete(core, plan)
    assert served == set(others)


def test_a_suspect_whose_adapter_is_absent_keeps_nobody_waiting():
    core = scheduler(look_ahead=1)
    core.available(ADAPTER, 0.0)
    submit(core, adapter=ADAPTER)
    die(core, 2)
    core.available(ADAPTER, 0.0)
    die(core, 3)
    newcomer = submit(core, now=1.0)
    assert core.plan(0.0).members == (newcomer,)


def test_whoever_uses_what_is_not_to_be_had_any_more_fails_wherever_it_stands():
    core = scheduler()
    core.available(ADAPTER, 0.0)
    number = submit(core, adapter=ADAPTER)
    core.plan(0.0)
    assert core.unavailable(ADAPTER, "it was removed", 0.0) == [Failed(number, "it was removed")]
    assert core.num_unfinished == 0


def test_any_number_of_clients_that_do_not_read_hide_nobody_behind_them():
    core = scheduler()
    for number in range(LOOKED_AT):
        core.hold(submit(core, now=float(number)), 0.0)
    newcomer = submit(core, now=1000.0)
    assert core.plan(0.0).members == (newcomer,)
