"""Prefix cache through the core: one rule per test, and measurements.

Random histories are in test_sharing.py."""

import pytest
from support.cost_model_clock import Clockwork, Model
from support.shared_prefixes import FACTS, SIZE, cached, complete, run, scheduler, submit, text
from support.simulated_world import named

from router.request import Request
from router.scheduler.fault_isolation import Loss
from router.scheduler.settings import Policy

# -- one rule at a time


def test_a_hit_covers_whole_blocks_before_the_last_prompt_token():
    core = scheduler(look_ahead=1)
    submit(core, text(48))
    run(core)
    numbers = [submit(core, text(length), now=1.0) for length in (16, 17, 40, 48, 49)]
    assert run(core) == dict(zip(numbers, (0, 16, 32, 32, 48), strict=True))


def test_what_another_tenant_computed_is_not_found():
    core = scheduler(look_ahead=1)
    submit(core, text(48))
    run(core)
    other = submit(core, text(48), tenant="two", now=1.0)
    assert run(core) == {other: 0}


def test_who_wants_prompt_logprobs_finds_nothing_and_does_not_wait():
    core = scheduler(look_ahead=2)
    submit(core, text(48))
    first = core.plan(0.0)
    number = submit(core, text(48), prompt_logprobs=True, now=1.0)
    assert cached(core.plan(0.0)) == {number: 0}
    complete(core, first)


def test_a_block_is_published_when_the_step_that_fills_it_is_answered():
    core = scheduler(look_ahead=2)
    submit(core, text(48))
    first = core.plan(0.0)
    waits = submit(core, text(48), now=1.0)
    assert cached(core.plan(0.0)) == {}
    complete(core, first)
    assert cached(core.plan(0.0)) == {waits: 32}


def test_a_newcomer_waits_while_another_computes_its_next_block():
    core = scheduler(look_ahead=1, max_prefill_tokens=32)
    first, waits = submit(core, text(64)), submit(core, text(64), now=1.0)
    for expected in ({first: 0}, {}, {waits: 48}):
        plan = core.plan(0.0)
        assert cached(plan) == expected
        complete(core, plan)


def test_who_waits_for_another_starts_when_that_one_leaves():
    core = scheduler(look_ahead=1, max_prefill_tokens=32)
    first = submit(core, text(64))
    waits = submit(core, text(64), now=1.0)
    complete(core, core.plan(0.0))
    core.cancel(first, 0.0)
    assert cached(core.plan(0.0)) == {waits: 32}


def test_generated_tokens_are_found_by_the_next_turn():
    core = scheduler(look_ahead=1)
    submit(core, text(20), output=30)
    run(core)
    second = submit(core, text(20) + (7,) * 30 + text(20, seed=1), now=1.0)
    assert run(core) == {second: 48}


@pytest.mark.parametrize("leave", ["cancel", "hold"])
def test_who_leaves_in_mid_sentence_leaves_what_it_said_to_others(leave):
    core = scheduler(look_ahead=1)
    number = submit(core, text(20), output=60)
    for _ in range(31):
        complete(core, core.plan(0.0))
    getattr(core, leave)(number, 0.0)
    follows = submit(core, text(20) + (7,) * 31 + text(20, seed=1), now=1.0)
    assert cached(core.plan(0.0)) == {follows: 48}


def test_tokens_behind_a_prompt_shorter_than_a_block_belong_to_a_tenant_as_well():
    core = scheduler(look_ahead=1)
    for now, tenant in enumerate(("one", "two")):
        submit(core, text(10), output=30, now=float(now), tenant=tenant)
        assert sum(run(core).values()) == 0
        second = submit(core, text(10) + (7,) * 30, now=10.0, tenant=tenant)
        assert run(core) == {second: 32}


@pytest.mark.parametrize("look_ahead", [1, 2])
def test_a_prompt_with_one_token_of_output_is_found(look_ahead):
    """The sequence leaves its batch before the step that fills its blocks is answered."""
    core = scheduler(look_ahead=look_ahead)
    submit(core, text(64), output=1)
    waits = submit(core, text(64), output=1, now=1.0)
    plans = [core.plan(0.0) for _ in range(look_ahead)]
    complete(core, plans[0])
    assert cached(core.plan(0.0)) == {waits: 48}


def test_what_a_failed_sequence_computed_is_not_found():
    core = scheduler(look_ahead=1, max_prefill_tokens=32)
    number = submit(core, text(64))
    complete(core, core.plan(0.0))
    complete(core, core.plan(0.0), failed=[number])
    other = submit(core, text(64), now=1.0)
    assert run(core) == {other: 32}


def test_after_a_loss_nothing_is_found():
    core = scheduler(look_ahead=1)
    submit(core, text(64))
    run(core)
    core.shards_lost(0.0, Loss.DEFECT)
    core.shards_ready(FACTS, 2, 0.0)
    other = submit(core, text(64), now=1.0)
    assert run(core) == {other: 0}


def test_the_least_recently_used_goes_first():
    core = scheduler(num_blocks=6, look_ahead=1)
    for seed in (1, 2):
        submit(core, text(33, seed), output=1)
        run(core)
    again = submit(core, text(33, 1), output=1)
    assert run(core) == {again: 32}
    submit(core, text(33, 3), output=1)
    run(core)
    numbers = [submit(core, text(33, seed), output=1, now=10.0 - seed) for seed in (3, 2, 1)]
    assert run(core) == dict(zip(numbers, (32, 16, 32), strict=True))


def test_an_old_answer_publishes_nothing_of_who_gave_its_blocks_back_and_entered_again():
    """The chunk sent before the sequence was preempted is answered while its new blocks are still empty."""
    core = scheduler(look_ahead=2, max_prefill_tokens=32)
    number = submit(core, text(64))
    first = core.plan(0.0)
    core.hold(number, 0.0)
    core.resume(number, 0.0)
    second = core.plan(0.0)
    assert cached(second) == {number: 0}
    complete(core, first)
    core.cancel(number, 0.0)
    other = submit(core, text(64), now=1.0)
    assert cached(core.plan(0.0)) == {other: 0}


def test_under_pause_a_newcomer_fits_a_step_by_what_it_must_compute():
    core = scheduler(mixed=False, look_ahead=1, max_prefill_tokens=64)
    submit(core, text(48))
    run(core)
    numbers = [submit(core, text(48) + text(10, seed), now=float(seed)) for seed in (1, 2, 3)]
    assert cached(core.plan(0.0)) == dict.fromkeys(numbers, 48)


# -- measurements


@pytest.mark.slow
@pytest.mark.parametrize("output", [1, 32])
@pytest.mark.parametrize("gap", [0.0, 0.05])
@pytest.mark.parametrize("policy", [{"mixed": True}, {"mixed": False}, {"look_ahead": 1}], ids=str)
def test_a_prefix_that_64_requests_share_is_computed_once(output, gap, policy):
    world = Clockwork(Policy(max_concurrent_requests=100, **policy), Model(0.006, 3e-5, 4e-5, 4.4e-8, "cuda"))
    prompts = [text(2000) + text(number % 50 + 1, seed=number) for number in range(64)]
    for number, prompt in enumerate(prompts):
        world.arrive(named(Request(str(number), prompt, output), SIZE), gap * number)
    world.run()
    assert len(world.lives) == 64
    unique = 2000 + sum(len(prompt) - 2000 for prompt in prompts)
    assert world.prompt_tokens_run <= 1.1 * unique
