"""Tests of PrefillBudget and PrefillTimeLedger in router/scheduler/batching_policies.py."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def chunk_length_beside(decodes, model, num_waiting=1, stall_seconds=0.05):
    """Return how many tokens of a long prompt may run in a step with these decodes."""
    allowance = PrefillTimeLedger().update_allowance(decodes, num_waiting, stall_seconds, model)
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


def run_steps(model, num_steps, ledger):
    """Return the chunk lengths of consecutive steps with one decode and one long prompt, without a stall promise."""
    lengths = []
    for _ in range(num_steps):
        budget = PrefillBudget(4096, 16, *ledger.update_allowance(StepLoad(rows=1), 1, 0.0, model), model)
        lengths.append(budget.max_chunk_length(0, 4096))
        if lengths[-1]:
            budget.spend(0, lengths[-1])
            ledger.settle(budget)
    return lengths


def test_block_beyond_the_stall_limit_runs_after_decodes_took_half_its_time():
    assert run_steps(CostModel((0.002, 0.0, 0.001, 0.0)), 8, PrefillTimeLedger()) == [0, 0, 0, 16, 0, 0, 0, 16]


def test_kept_time_pays_for_one_block_at_most():
    """Regression: after a step that kept slightly less time than a block takes, the next step ran two blocks."""
    # A step earns 2.08 seconds; one block takes 2.1 seconds, two take 4.1.
    assert run_steps(CostModel((0.94, 0.1, 0.125, 0.0)), 4, PrefillTimeLedger()) == [0, 16, 16, 16]


def test_rest_below_a_block_is_kept_for_one_block_more():
    """Regression: a step that earned 1.5 blocks ran one, always, so that prompts got half of the time."""
    # A step earns 24 seconds, of which a block takes 16.
    lengths = run_steps(CostModel((12.0, 0.0, 1.0, 0.0)), 8, PrefillTimeLedger())
    assert lengths == [16, 32, 16, 32, 16, 32, 16, 32]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(step=st.floats(0.001, 2.0), per_row=st.floats(0.0, 0.1), per_token=st.floats(1e-5, 0.2),
       num_steps=st.integers(1, 60))
def test_prompts_get_what_decodes_earn(step, per_row, per_token, num_steps):
    """However slow steps are, prompts spend all that was earned but the rest of a block, and never more than a step
    earns, rounded up to whole blocks."""
    model, ledger = CostModel((step, per_row, per_token, 0.0)), PrefillTimeLedger()
    earned = 2.0 * model.predict(StepLoad(rows=1))
    lengths = run_steps(model, num_steps, ledger)
    block_seconds = per_row + 16 * per_token
    spent = sum(predict_chunk_seconds(model, 0, length) for length in lengths if length)
    if max(lengths) < 4096:
        assert num_steps * earned - block_seconds - 1e-6 <= spent <= num_steps * earned + 1e-6
    assert all(predict_chunk_seconds(model, 0, length - 16) <= earned + 1e-6 for length in lengths if length)


@pytest.mark.parametrize("prompt_length", [16, 40, 128])
@pytest.mark.parametrize("earned_blocks", [0.3, 1.0, 1.5, 1.99, 3.7])
def test_short_prompts_get_two_thirds_of_the_time_too(prompt_length, earned_blocks):
    """Regression: kept seconds were for the first chunk alone, which a short prompt's never needs."""
    model, ledger = CostModel((earned_blocks * 8.0, 0.0, 1.0, 0.0)), PrefillTimeLedger()  # a token takes a second
    num_steps, spent, start = 200, 0.0, 0
    for _ in range(num_steps):
        budget = PrefillBudget(4096, 16, *ledger.update_allowance(StepLoad(rows=8), 8, 0.0, model), model)
        while length := budget.max_chunk_length(start, prompt_length - start):
            budget.spend(start, length)
            start = (start + length) % prompt_length
        assert budget.spent_seconds <= earned_blocks * 16 + 16
        if budget.spent_seconds:
            ledger.settle(budget)
        spent += budget.spent_seconds
    assert spent / (num_steps * earned_blocks * 8.0) == pytest.approx(2.0, rel=0.02)


def test_what_was_earned_beyond_a_block_is_not_kept():
    model, ledger = CostModel((10.0, 0.0, 0.1, 0.0)), PrefillTimeLedger()
    budget = PrefillBudget(4096, 16, *ledger.update_allowance(StepLoad(rows=1), 9, 0.0, model), model)
    budget.spend(0, 32)  # a short prompt: 3.2 of the 180 seconds
    ledger.settle(budget)
    assert ledger.kept_seconds == pytest.approx(1.6)


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
