"""Tests of router/scheduler/prefill_budget.py."""

from math import inf

import pytest

from router.scheduler.cost_model import CostModel, Load
from router.scheduler.prefill_budget import Budget, PromptShare, seconds_of_chunk


def costs(per_token=0.001):
    return CostModel((0.01, 0.001, per_token, 0.0))


def test_a_prompt_that_fits_runs_whole():
    assert Budget(100, 16).chunk(0, 70) == 70


def test_a_prompt_that_does_not_fit_runs_in_whole_blocks():
    assert Budget(50, 16).chunk(0, 70) == 48


def test_chunks_end_at_block_boundaries_wherever_they_start():
    assert Budget(50, 16).chunk(7, 70) == 41  # 7 + 41 = 48


def test_less_than_a_block_is_nothing():
    assert Budget(15, 16).chunk(0, 70) == 0


def test_spending_leaves_less():
    budget = Budget(100, 16)
    budget.spend(0, 60)
    assert budget.tokens == 40


def chunk_beside(decodes, model, num_waiting=1, stall_seconds=0.05, share=None):
    """Return how many tokens of a long prompt may run in a step with these decodes."""
    seconds = (share or PromptShare()).seconds(decodes, num_waiting, stall_seconds, model)
    return Budget(4096, 16, *seconds, model).chunk(0, 4096)


def test_what_prompts_add_keeps_the_stall_promise_however_unlucky():
    model, decodes = costs(), Load(rows=8, context=800)
    length = chunk_beside(decodes, model)
    assert length > 0
    assert seconds_of_chunk(model, 0, length) * model.caution <= 0.05
    assert seconds_of_chunk(model, 0, length + 16) * model.caution > 0.05


@pytest.mark.parametrize("step", [0.002, 0.02, 0.2, 2.0])
def test_a_slow_step_leaves_prompts_twice_its_time_whatever_the_promise(step):
    model = CostModel((step, 0.0, 0.001, 0.0))
    assert chunk_beside(Load(rows=1), model, stall_seconds=0.0) == min(int(2 * step / 0.001), 4096) // 16 * 16


def test_a_block_that_takes_longer_runs_once_decodes_held_it_up_for_half_its_time():
    model, share = CostModel((0.002, 0.0, 0.001, 0.0)), PromptShare()
    lengths = []
    for _ in range(8):
        lengths.append(chunk_beside(Load(rows=1), model, stall_seconds=0.0, share=share))
        share.planned(left_out=not lengths[-1])
    assert lengths == [0, 0, 0, 16, 0, 0, 0, 16]


def test_seconds_kept_from_step_to_step_pay_for_one_block_and_no_more():
    """A step that earned a hair less than a block once made the next run two, twice the stall that was allowed."""
    # A step earns 2.08 seconds; a block takes 2.1, two take 4.1.
    model, share = CostModel((0.94, 0.1, 0.125, 0.0)), PromptShare()
    lengths = []
    for _ in range(4):
        lengths.append(chunk_beside(Load(rows=1), model, stall_seconds=0.0, share=share))
        share.planned(left_out=not lengths[-1])
    assert lengths == [0, 16, 0, 16]


def test_the_more_wait_and_the_fewer_decode_the_more_the_first_prompt_gets():
    model, decodes = CostModel((0.2, 0.0, 0.001, 0.0)), Load(rows=4)
    assert [chunk_beside(decodes, model, waiting) for waiting in (1, 4, 6, 12, 400)] == [400, 400, 592, 1200, 4096]


def test_what_the_first_prompt_gets_beyond_its_share_is_not_for_the_next():
    budget = Budget(4096, 16, seconds=0.1, first_seconds=0.5, costs=CostModel((0.2, 0.0, 0.001, 0.0)))
    budget.spend(0, 300)
    assert budget.chunk(0, 4096) == 0


def test_what_the_first_prompt_leaves_of_the_share_is_for_the_next():
    budget = Budget(4096, 16, seconds=0.1, first_seconds=0.5, costs=CostModel((0.2, 0.0, 0.001, 0.0)))
    budget.spend(0, 20)
    assert budget.chunk(0, 4096) == 80


def test_without_a_promise_only_tokens_count():
    assert Budget(4096, 16).seconds == inf


@pytest.mark.parametrize("left", [1, 15, 16, 17])
def test_the_rest_of_a_prompt_may_be_shorter_than_a_block(left):
    assert Budget(64, 16).chunk(32, left) == left
