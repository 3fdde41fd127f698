"""The check of law L5 detects schedulers that violate the law."""

import pytest
from test_simulation import random_world

from router.scheduler.policies import Pause
from router.scheduler.prefill_budget import Budget, PromptShare

SEEDS = range(40)


def run_some(pattern):
    def run_them():
        for seed in SEEDS:
            random_world(seed).run(max_events=20_000)

    with pytest.raises(AssertionError, match=pattern):
        run_them()


def test_a_promise_that_is_not_kept(monkeypatch):
    monkeypatch.setattr(Budget, "chunk", lambda budget, _, left: min(left, budget.tokens))
    run_some("L5: prompts add")


def test_prompts_that_the_promise_starves(monkeypatch):
    monkeypatch.setattr(PromptShare, "seconds", lambda *_: (0.0, 0.0, 0.0))
    run_some("L5: prompts earned")


def test_newcomers_who_are_never_due(monkeypatch):
    monkeypatch.setattr(Pause, "_is_due", lambda steps: not len(steps.house.running))
    run_some("L5: .* decodes passed by a prompt")
