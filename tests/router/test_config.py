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
def test_a_setting_out_of_bounds_is_refused_with_flag_bound_and_value(settings, message):
    with pytest.raises(ValueError, match=message):
        RouterConfig(**settings)


def test_a_prompt_must_leave_room_for_a_token():
    with pytest.raises(ValueError, match=r"--max-input-tokens \(100\) must be below --max-total-tokens \(100\)"):
        RouterConfig(max_input_tokens=100, max_total_tokens=100)


def test_a_step_must_hold_more_than_a_block():
    with pytest.raises(ValueError, match="--max-batch-prefill-tokens"):
        RouterConfig(max_batch_prefill_tokens=16)
