from math import inf

import pytest

from router.budget import Budget, load_of_chunk
from router.costs import CostModel, Load


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


def test_a_step_with_chunks_stays_within_the_promise_however_unlucky():
    model, ready = costs(), Load(rows=8, context=800)
    budget = Budget.beside(ready, 4096, 16, promise=0.05, costs=model)
    length = budget.chunk(0, 4096)
    chunk = load_of_chunk(0, length)
    together = model.predict(Load(ready.rows + 1, length, ready.context + chunk.context))
    assert length > 0
    assert together * model.caution - model.predict(ready) <= 0.05


def test_no_promise_is_left_when_luck_alone_may_cost_it():
    slow = CostModel((1.0, 0.0, 0.001, 0.0))
    assert Budget.beside(Load(rows=1), 4096, 16, promise=0.05, costs=slow).chunk(0, 4096) == 0


def test_without_a_promise_only_tokens_count():
    assert Budget(4096, 16).seconds == inf


@pytest.mark.parametrize("left", [1, 15, 16, 17])
def test_the_rest_of_a_prompt_may_be_shorter_than_a_block(left):
    assert Budget(64, 16).chunk(32, left) == left
