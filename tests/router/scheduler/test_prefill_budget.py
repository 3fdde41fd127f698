"""Tests of PrefillBudget and PrefillTimeLedger in router/scheduler/batching_policies.py."""

from math import inf

import pytest

from router.scheduler.batching_policies import PrefillBudget, PrefillTimeLedger, predict_chunk_seconds
from router.scheduler.cost_model import CostModel, StepLoad


def make_cost_model(per_token=0.001):
    return CostModel((0.01, 0.001, per_token, 0.0))


def test_prompt_that_fits_is_not_cut():
    assert PrefillBudget(100, 16).max_chunk_length(0, 70) == 70


def test_prompt_that_does_not_fit_is_cut_to_whole_blocks():
    assert PrefillBudget(50, 16).max_chunk_length(0, 70) == 48


def test_chunks_end_at_block_boundaries_wherever_they_start():
    assert PrefillBudget(50, 16).max_chunk_length(7, 70) == 41  # 7 + 41 = 48


def test_less_than_a_block_is_not_used():
    assert PrefillBudget(15, 16).max_chunk_length(0, 70) == 0


def test_spending_reduces_the_budget():
    budget = PrefillBudget(100, 16)
    budget.spend(0, 60)
    assert budget.tokens == 40


def chunk_length_beside(decodes, model, num_waiting=1, stall_seconds=0.05, prompt_allowance=None):
    """Return how many tokens of a long prompt may run in a step with these decodes."""
    time_allowance = prompt_allowance or PrefillTimeLedger()
    allowance = time_allowance.update_allowance(decodes, num_waiting, stall_seconds, model)
    return PrefillBudget(4096, 16, *allowance, model).max_chunk_length(0, 4096)


def test_chunk_keeps_the_stall_limit_with_the_safety_factor():
    model, decodes = make_cost_model(), StepLoad(rows=8, context=800)
    length = chunk_length_beside(decodes, model)
    assert length > 0
    assert predict_chunk_seconds(model, 0, length) * model.safety_factor <= 0.05
    assert predict_chunk_seconds(model, 0, length + 16) * model.safety_factor > 0.05


@pytest.mark.parametrize("step", [0.002, 0.02, 0.2, 2.0])
def test_slow_step_leaves_prompts_twice_its_time_despite_the_stall_limit(step):
    model = CostModel((step, 0.0, 0.001, 0.0))
    assert chunk_length_beside(StepLoad(rows=1), model,
                               stall_seconds=0.0) == min(int(2 * step / 0.001), 4096) // 16 * 16


def test_block_beyond_the_stall_limit_runs_after_decodes_took_half_its_time():
    model, share = CostModel((0.002, 0.0, 0.001, 0.0)), PrefillTimeLedger()
    lengths = []
    for _ in range(8):
        lengths.append(chunk_length_beside(StepLoad(rows=1), model, stall_seconds=0.0, prompt_allowance=share))
        if lengths[-1]:
            share.decode_seconds_since_prefill = 0.0
    assert lengths == [0, 0, 0, 16, 0, 0, 0, 16]


def test_saved_time_pays_for_one_block_at_most():
    """Regression: after a step that saved slightly less time than a block takes, the next step ran two blocks."""
    # A step saves 2.08 seconds; one block takes 2.1 seconds, two take 4.1.
    model, share = CostModel((0.94, 0.1, 0.125, 0.0)), PrefillTimeLedger()
    lengths = []
    for _ in range(4):
        lengths.append(chunk_length_beside(StepLoad(rows=1), model, stall_seconds=0.0, prompt_allowance=share))
        if lengths[-1]:
            share.decode_seconds_since_prefill = 0.0
    assert lengths == [0, 16, 0, 16]


def test_first_prompt_gets_more_time_with_more_waiting_and_fewer_decodes():
    model, decodes = CostModel((0.2, 0.0, 0.001, 0.0)), StepLoad(rows=4)
    assert [chunk_length_beside(decodes, model, waiting)
            for waiting in (1, 4, 6, 12, 400)] == [400, 400, 592, 1200, 4096]


def test_extra_time_of_the_first_prompt_is_not_for_the_next():
    budget = PrefillBudget(4096, 16, seconds=0.1, first_chunk_seconds=0.5, cost_model=CostModel((0.2, 0.0, 0.001, 0.0)))
    budget.spend(0, 300)
    assert budget.max_chunk_length(0, 4096) == 0


def test_time_left_by_the_first_prompt_is_for_the_next():
    budget = PrefillBudget(4096, 16, seconds=0.1, first_chunk_seconds=0.5, cost_model=CostModel((0.2, 0.0, 0.001, 0.0)))
    budget.spend(0, 20)
    assert budget.max_chunk_length(0, 4096) == 80


def test_budget_without_a_stall_limit_counts_only_tokens():
    assert PrefillBudget(4096, 16).seconds == inf


@pytest.mark.parametrize("left", [1, 15, 16, 17])
def test_rest_of_a_prompt_may_be_shorter_than_a_block(left):
    assert PrefillBudget(64, 16).max_chunk_length(32, left) == left
