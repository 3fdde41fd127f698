import pytest

from router.config import RouterConfig
from router.model_info import ModelInfo
from router.scheduler.settings import SchedulerSettings, describe_unused_settings


def make_settings(device="cpu", mixed_steps=True, **config_fields):
    facts = ModelInfo("m", device, "float32", 512, 4096, 16, 64, mixed_steps=mixed_steps)
    return SchedulerSettings.from_config(RouterConfig(**config_fields), facts)


@pytest.mark.parametrize(("device", "seconds"), [("cuda", 0.05), ("cpu", 0.15)])
def test_default_stall_limit_depends_on_the_device(device, seconds):
    assert make_settings(device).max_stall_seconds == seconds
    assert make_settings(device, max_decode_stall_ms=20).max_stall_seconds == 0.02


def test_model_without_mixed_steps_uses_the_pause_policy():
    assert make_settings().mixed
    assert not make_settings(mixed_steps=False).mixed
    assert not make_settings(prefill_policy="pause").mixed


def test_unused_pause_settings_are_reported():
    config = RouterConfig(waiting_served_ratio=1.0)
    assert describe_unused_settings(config, SchedulerSettings(mixed=True)) == [
        "--waiting-served-ratio has no effect with mixed steps, only with --prefill-policy pause"]
    assert describe_unused_settings(config, SchedulerSettings(mixed=False)) == []


def test_unused_static_settings_are_reported():
    config = RouterConfig(static_window_ms=5.0)
    assert (describe_unused_settings(config, SchedulerSettings())
            == ["--static-window-ms has no effect but with --batching static"])
    assert describe_unused_settings(config, SchedulerSettings(static=True)) == []


@pytest.mark.parametrize(("max_batch_size", "max_concurrent_requests", "is_reported"), [
    (256, 128, False), (512, 128, True), (128, 128, False), (512, 512, False)])
def test_batch_that_requests_cannot_fill_is_reported(max_batch_size, max_concurrent_requests, is_reported):
    """The defaults are not reported: several sequences per request can fill their batch."""
    config = RouterConfig(max_batch_size=max_batch_size, max_concurrent_requests=max_concurrent_requests)
    expected = ["--max-batch-size 512 can only be reached with several sequences per request: "
                "--max-concurrent-requests 128 refuses further requests"]
    assert describe_unused_settings(config, SchedulerSettings()) == (expected if is_reported else [])


@pytest.mark.parametrize(("batching", "size"), [
    ("continuous", 9), ("dynamic", 9), ("static", 9), ("none", 1), ("nobatch", 1)])
def test_batching_mode_sets_batch_size_and_static_groups(batching, size):
    settings = make_settings(batching=batching, max_batch_size=9, static_window_ms=20)
    assert (settings.max_batch_size, settings.static) == (size, batching == "static")
    assert settings.static_window_seconds == 0.02


def test_recompute_disables_look_ahead():
    assert make_settings(look_ahead=2).look_ahead == 2
    assert make_settings(look_ahead=2, recompute=True).look_ahead == 1


def test_maximum_batch_size_leaves_room_for_a_block_of_prompt():
    assert make_settings(max_batch_prefill_tokens=64, max_batch_size=256).max_batch_size == 48
