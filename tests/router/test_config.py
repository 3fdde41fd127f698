import pytest

from router.config import RouterConfig


@pytest.mark.parametrize(("settings", "message"), [
    ({"port": 70000}, "--port must be at most 65535, got 70000"),
    ({"max_batch_size": 0}, "--max-batch-size must be at least 1, got 0"),
    ({"prefill_policy": "both"}, "--prefill-policy must be one of mixed, pause, got both"),
    ({"block_size": 24}, "--block-size must be a multiple of 16, got 24"),
    ({"look_ahead": 3}, "--look-ahead must be at most 2, got 3"),
    ({"waiting_served_ratio": float("nan")}, "--waiting-served-ratio must be at least 0, got nan"),
])
def test_setting_out_of_range_is_rejected_with_flag_limit_and_value(settings, message):
    with pytest.raises(ValueError, match=message):
        RouterConfig(**settings)


def test_input_limit_must_leave_room_for_a_token():
    with pytest.raises(ValueError, match=r"--max-input-tokens \(100\) must be below --max-total-tokens \(100\)"):
        RouterConfig(max_input_tokens=100, max_total_tokens=100)


def test_prefill_budget_must_exceed_a_block():
    with pytest.raises(ValueError, match="--max-batch-prefill-tokens"):
        RouterConfig(max_batch_prefill_tokens=16)


def test_cache_must_hold_a_whole_request():
    with pytest.raises(ValueError, match=r"--max-total-tokens \(99\) must be at most --max-batch-total-tokens \(98\)"):
        RouterConfig(max_total_tokens=99, max_batch_total_tokens=98)


def test_cache_must_hold_a_block():
    with pytest.raises(ValueError, match=r"--max-batch-total-tokens must be at least one block \(32"):
        RouterConfig(max_batch_total_tokens=16, block_size=32)


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 513])
def test_invalid_names_of_the_model_are_rejected(name):
    with pytest.raises(ValueError, match=rf"--served-model-name must be 1 to 512 .* got {len(name)} characters"):
        RouterConfig(served_model_name=("gpt-4o", name))


@pytest.mark.parametrize(("settings", "reason"), [
    ({"served_model_name": ("a", "b", "a")}, "--served-model-name a is given twice"),
    ({"served_model_name": ("sql",), "preloaded_adapter_ids": ("sql=org/lora",)}, "also the name of an adapter"),
    ({"served_model_name": ("sql",), "adapter_id": "sql"}, "also the name of an adapter"),
    ({"preloaded_adapter_ids": ('{"name": "sql"}',)}, "takes ID or NAME=ID, not JSON"),
])
def test_names_that_hide_one_another_are_rejected(settings, reason):
    with pytest.raises(ValueError, match=reason):
        RouterConfig(**settings)


@pytest.mark.parametrize("origin", [
    "*", "null", "https://a.example.org", "http://localhost:3000", "http://[::1]:80", "chrome-extension://abcdef"])
def test_valid_cors_origins_are_accepted(origin):
    assert RouterConfig(cors_allow_origin=(origin,)).cors_allow_origin == (origin,)


@pytest.mark.parametrize("origin",
                         ["", "a.example.org", "https://a.org/", "https://a.org/chat", "https://a, https://b"])
def test_invalid_cors_origins_are_rejected(origin):
    with pytest.raises(ValueError, match=r"--cors-allow-origin must be \* or an origin without a path"):
        RouterConfig(cors_allow_origin=("*", origin))
