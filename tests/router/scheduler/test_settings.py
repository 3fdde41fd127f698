import pytest

from router.config import RouterConfig
from router.scheduler.plan import ModelFacts
from router.scheduler.settings import Policy, without_effect


def policy(device="cpu", mixed_steps=True, **settings):
    facts = ModelFacts("m", device, "float32", 512, 4096, 16, 64, mixed_steps=mixed_steps)
    return Policy.of(RouterConfig(**settings), facts)


@pytest.mark.parametrize(("device", "seconds"), [("cuda", 0.05), ("cpu", 0.15)])
def test_the_stall_promise_depends_on_the_device_unless_it_is_given(device, seconds):
    assert policy(device).stall_seconds == seconds
    assert policy(device, max_decode_stall_ms=20).stall_seconds == 0.02


def test_a_model_without_mixed_steps_pauses():
    assert policy().mixed
    assert not policy(mixed_steps=False).mixed
    assert not policy(prefill_policy="pause").mixed


def test_settings_of_pause_that_were_given_under_mixed_steps_are_named():
    config = RouterConfig(waiting_served_ratio=1.0)
    assert without_effect(config, Policy(mixed=True)) == [
        "--waiting-served-ratio has no effect with mixed steps, only with --prefill-policy pause"]
    assert without_effect(config, Policy(mixed=False)) == []


def test_settings_of_groups_that_were_given_without_any_are_named():
    config = RouterConfig(static_window_ms=5.0)
    assert without_effect(config, Policy()) == ["--static-window-ms has no effect but with --batching static"]
    assert without_effect(config, Policy(static=True)) == []


@pytest.mark.parametrize(("batching", "size"), [
    ("continuous", 9), ("dynamic", 9), ("static", 9), ("none", 1), ("nobatch", 1)])
def test_who_runs_together(batching, size):
    found = policy(batching=batching, max_batch_size=9, static_window_ms=20)
    assert (found.max_batch_size, found.static, found.static_window) == (size, batching == "static", 0.02)


def test_what_is_computed_anew_is_known_before():
    assert policy(look_ahead=2).look_ahead == 2
    assert policy(look_ahead=2, recompute=True).look_ahead == 1


def test_a_full_batch_leaves_room_for_a_block_of_prompt():
    assert policy(max_batch_prefill_tokens=64, max_batch_size=256).max_batch_size == 48
