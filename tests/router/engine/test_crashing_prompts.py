"""Prompts that are refused since they ended the shards' processes."""

import pytest

from router.engine import crashing_prompts
from router.engine.crashing_prompts import REFUSAL_SECONDS, CrashingPrompts
from router.errors import InvalidRequest
from router.request import LoadableResource, Request, Tenant


def test_prompt_is_refused_for_some_minutes_whatever_its_other_parameters() -> None:
    prompts = CrashingPrompts()
    prompts.check(Request("a", (1, 2, 3), 5), 0.0)
    prompts.add(Request("a", (1, 2, 3), 5), 10.0)
    with pytest.raises(InvalidRequest, match="600 more seconds"):
        prompts.check(Request("b", (1, 2, 3), 50), 10.0)
    prompts.check(Request("b", (1, 2, 3, 4), 5), 10.0)
    prompts.check(Request("b", (1, 2, 3), 5, adapter=LoadableResource("adapter", 1)), 10.0)
    prompts.check(Request("b", (1, 2, 3), 5, tenant=Tenant("other")), 10.0)  # which must not suffer from another
    prompts.check(Request("b", (1, 2, 3), 5), 10.0 + REFUSAL_SECONDS)
    assert not prompts.refused_until


def test_number_of_remembered_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashing_prompts, "MAX_PROMPTS", 2)
    prompts = CrashingPrompts()
    for token in range(3):
        prompts.add(Request("a", (token,), 5), 0.0)
    prompts.check(Request("b", (0,), 5), 0.0)
    for token in (1, 2):
        with pytest.raises(InvalidRequest):
            prompts.check(Request("b", (token,), 5), 0.0)
