"""Prefix cache through the core: one rule per test, and measurements.

Random histories are in test_sharing.py."""

import pytest
from support.scheduling.scheduler_simulation import SchedulerSimulation, TrueCosts
from support.scheduling.shared_prefixes import (
    BLOCK_SIZE,
    DEFAULT_MODEL_INFO,
    complete_plan,
    get_cached_counts,
    make_prefix_scheduler,
    make_prompt_tokens,
    run_until_idle,
    submit_prompt,
)
from support.scheduling.simulated_world import add_block_hashes

from router.request import Request
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.settings import SchedulerSettings

# -- one rule at a time


def test_cache_hit_covers_whole_blocks_before_the_last_prompt_token():
    core = make_prefix_scheduler(look_ahead=1)
    submit_prompt(core, make_prompt_tokens(48))
    run_until_idle(core)
    numbers = [submit_prompt(core, make_prompt_tokens(length), now=1.0) for length in (16, 17, 40, 48, 49)]
    assert run_until_idle(core) == dict(zip(numbers, (0, 16, 32, 32, 48), strict=True))


def test_blocks_of_another_tenant_are_not_found():
    core = make_prefix_scheduler(look_ahead=1)
    submit_prompt(core, make_prompt_tokens(48))
    run_until_idle(core)
    number = submit_prompt(core, make_prompt_tokens(48), tenant="two", now=1.0)
    assert run_until_idle(core) == {number: 0}


def test_request_with_prompt_logprobs_uses_no_cached_blocks_and_does_not_wait():
    core = make_prefix_scheduler(look_ahead=2)
    submit_prompt(core, make_prompt_tokens(48))
    first = core.plan(0.0)
    number = submit_prompt(core, make_prompt_tokens(48), prompt_logprobs=True, now=1.0)
    assert get_cached_counts(core.plan(0.0)) == {number: 0}
    complete_plan(core, first)


def test_block_is_published_when_the_step_that_fills_it_is_answered():
    core = make_prefix_scheduler(look_ahead=2)
    submit_prompt(core, make_prompt_tokens(48))
    first = core.plan(0.0)
    waits = submit_prompt(core, make_prompt_tokens(48), now=1.0)
    assert get_cached_counts(core.plan(0.0)) == {}
    complete_plan(core, first)
    assert get_cached_counts(core.plan(0.0)) == {waits: 32}


def test_new_sequence_waits_while_another_computes_its_next_block():
    core = make_prefix_scheduler(look_ahead=1, max_prefill_tokens=32)
    first, waits = submit_prompt(core, make_prompt_tokens(64)), submit_prompt(core, make_prompt_tokens(64), now=1.0)
    for expected in ({first: 0}, {}, {waits: 48}):
        plan = core.plan(0.0)
        assert get_cached_counts(plan) == expected
        complete_plan(core, plan)


def test_sequence_waiting_for_another_starts_when_that_one_is_cancelled():
    core = make_prefix_scheduler(look_ahead=1, max_prefill_tokens=32)
    first = submit_prompt(core, make_prompt_tokens(64))
    waits = submit_prompt(core, make_prompt_tokens(64), now=1.0)
    complete_plan(core, core.plan(0.0))
    core.cancel(first, 0.0)
    assert get_cached_counts(core.plan(0.0)) == {waits: 32}


def test_generated_tokens_are_found_by_the_next_turn():
    core = make_prefix_scheduler(look_ahead=1)
    submit_prompt(core, make_prompt_tokens(20), max_new_tokens=30)
    run_until_idle(core)
    second = submit_prompt(core, make_prompt_tokens(20) + (7,) * 30 + make_prompt_tokens(20, seed=1), now=1.0)
    assert run_until_idle(core) == {second: 48}


@pytest.mark.parametrize("leave", ["cancel", "suspend"])
def test_generated_blocks_of_a_cancelled_or_suspended_sequence_are_found(leave):
    core = make_prefix_scheduler(look_ahead=1)
    number = submit_prompt(core, make_prompt_tokens(20), max_new_tokens=60)
    for _ in range(31):
        complete_plan(core, core.plan(0.0))
    getattr(core, leave)(number, 0.0)
    follows = submit_prompt(core, make_prompt_tokens(20) + (7,) * 31 + make_prompt_tokens(20, seed=1), now=1.0)
    assert get_cached_counts(core.plan(0.0)) == {follows: 48}


def test_generated_blocks_after_a_short_prompt_belong_to_their_tenant():
    core = make_prefix_scheduler(look_ahead=1)
    for now, tenant in enumerate(("one", "two")):
        submit_prompt(core, make_prompt_tokens(10), max_new_tokens=30, now=float(now), tenant=tenant)
        assert sum(run_until_idle(core).values()) == 0
        second = submit_prompt(core, make_prompt_tokens(10) + (7,) * 30, now=10.0, tenant=tenant)
        assert run_until_idle(core) == {second: 32}


@pytest.mark.parametrize("look_ahead", [1, 2])
def test_prompt_with_one_output_token_is_found(look_ahead):
    """The sequence leaves its batch before the step that fills its blocks is answered."""
    core = make_prefix_scheduler(look_ahead=look_ahead)
    submit_prompt(core, make_prompt_tokens(64), max_new_tokens=1)
    waits = submit_prompt(core, make_prompt_tokens(64), max_new_tokens=1, now=1.0)
    plans = [core.plan(0.0) for _ in range(look_ahead)]
    complete_plan(core, plans[0])
    assert get_cached_counts(core.plan(0.0)) == {waits: 48}


def test_blocks_of_a_failed_step_are_not_found():
    core = make_prefix_scheduler(look_ahead=1, max_prefill_tokens=32)
    number = submit_prompt(core, make_prompt_tokens(64))
    complete_plan(core, core.plan(0.0))
    complete_plan(core, core.plan(0.0), failed=[number])
    second = submit_prompt(core, make_prompt_tokens(64), now=1.0)
    assert run_until_idle(core) == {second: 32}


def test_nothing_is_found_after_a_shard_loss():
    core = make_prefix_scheduler(look_ahead=1)
    submit_prompt(core, make_prompt_tokens(64))
    run_until_idle(core)
    core.on_shards_lost(ShardLossReason.DEFECT, 0.0)
    core.on_shards_ready(DEFAULT_MODEL_INFO, 2, 0.0)
    number = submit_prompt(core, make_prompt_tokens(64), now=1.0)
    assert run_until_idle(core) == {number: 0}


def test_least_recently_used_block_is_evicted_first():
    core = make_prefix_scheduler(num_blocks=6, look_ahead=1)
    for seed in (1, 2):
        submit_prompt(core, make_prompt_tokens(33, seed), max_new_tokens=1)
        run_until_idle(core)
    again = submit_prompt(core, make_prompt_tokens(33, 1), max_new_tokens=1)
    assert run_until_idle(core) == {again: 32}
    submit_prompt(core, make_prompt_tokens(33, 3), max_new_tokens=1)
    run_until_idle(core)
    numbers = [submit_prompt(core, make_prompt_tokens(33, seed), max_new_tokens=1, now=10.0 - seed)
               for seed in (3, 2, 1)]
    assert run_until_idle(core) == dict(zip(numbers, (32, 16, 32), strict=True))


def test_late_answer_publishes_no_blocks_of_a_restarted_sequence():
    """The chunk sent before the sequence was preempted is answered while its new blocks are still empty."""
    core = make_prefix_scheduler(look_ahead=2, max_prefill_tokens=32)
    number = submit_prompt(core, make_prompt_tokens(64))
    first = core.plan(0.0)
    core.suspend(number, 0.0)
    core.resume(number, 0.0)
    second = core.plan(0.0)
    assert get_cached_counts(second) == {number: 0}
    complete_plan(core, first)
    core.cancel(number, 0.0)
    later = submit_prompt(core, make_prompt_tokens(64), now=1.0)
    assert get_cached_counts(core.plan(0.0)) == {later: 0}


def test_pause_policy_counts_only_uncached_tokens_of_a_prompt():
    core = make_prefix_scheduler(mixed=False, look_ahead=1, max_prefill_tokens=64)
    submit_prompt(core, make_prompt_tokens(48))
    run_until_idle(core)
    numbers = [submit_prompt(core, make_prompt_tokens(48) + make_prompt_tokens(10, seed), now=float(seed))
               for seed in (1, 2, 3)]
    assert get_cached_counts(core.plan(0.0)) == dict.fromkeys(numbers, 48)


# -- measurements


@pytest.mark.slow
@pytest.mark.parametrize("output", [1, 32])
@pytest.mark.parametrize("gap", [0.0, 0.05])
@pytest.mark.parametrize("policy", [{"mixed": True}, {"mixed": False}, {"look_ahead": 1}], ids=str)
def test_prefix_shared_by_64_requests_is_computed_once(output, gap, policy):
    world = SchedulerSimulation(SchedulerSettings(max_concurrent_requests=100, **policy),
                                TrueCosts(0.006, 3e-5, 4e-5, 4.4e-8, "cuda"))
    prompts = [make_prompt_tokens(2000) + make_prompt_tokens(number % 50 + 1, seed=number) for number in range(64)]
    for number, prompt in enumerate(prompts):
        world.add_arrival(add_block_hashes(Request(str(number), prompt, output), BLOCK_SIZE), gap * number)
    world.run()
    assert len(world.histories) == 64
    unique = 2000 + sum(len(prompt) - 2000 for prompt in prompts)
    assert world.num_prompt_tokens_run <= 1.1 * unique
