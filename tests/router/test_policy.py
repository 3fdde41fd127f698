import pytest

from router.config import RouterConfig
from router.messages import ModelFacts
from router.policy import Policy, without_effect


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
    assert without_effect(config, Policy(mixed=True)) == ["--waiting-served-ratio"]
    assert without_effect(config, Policy(mixed=False)) == []


def test_a_full_batch_leaves_room_for_a_block_of_prompt():
    assert policy(max_batch_prefill_tokens=64, max_batch_size=256).max_batch_size == 48
