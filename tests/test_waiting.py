"""The check of law L5 detects schedulers that violate the law."""

import pytest
from test_simulation import make_random_world

from router.scheduler.batching_policies import PausePolicy, PrefillBudget, PrefillTimeAllowance, PrefillTimeLedger

SEEDS = (1, 10, 13, *range(40))  # the first three have been short and broke one law each


def expect_law_violation(pattern):
    def run_seeds():
        for seed in SEEDS:
            make_random_world(seed).run(max_events=20_000)

    with pytest.raises(AssertionError, match=pattern):
        run_seeds()


def test_checker_detects_a_broken_stall_limit(monkeypatch):
    monkeypatch.setattr(PrefillBudget, "max_chunk_length", lambda budget, _, left: min(left, budget.tokens))
    expect_law_violation("L5: prompts add")


def test_checker_detects_starved_prompts(monkeypatch):
    monkeypatch.setattr(PrefillTimeLedger, "update_allowance", lambda *_: PrefillTimeAllowance(0.0, 0.0, 0.0, 0.0))
    expect_law_violation("L5: prompts earned")


def test_checker_detects_newcomers_that_never_start(monkeypatch):
    monkeypatch.setattr(PausePolicy, "_should_start_prefill", lambda steps: not len(steps.scheduler.running))
    expect_law_violation("L5: .* decodes passed by a prompt")
