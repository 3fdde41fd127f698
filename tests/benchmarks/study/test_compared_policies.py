import pytest

from benchmarks.study.compared_policies import (
    CACHE_POLICIES,
    COMPAT_POLICIES,
    MIXED_VARIANTS,
    SharedPolicySettings,
    format_policy_label,
    make_policy_settings,
    make_reproduction_policy_settings,
    make_window_policies,
    sort_policies,
)
from router.config import RouterConfig

POLICY_SETTINGS = SharedPolicySettings(max_batch_size=64, mean_request_seconds=2.0)


@pytest.mark.parametrize("name", [*CACHE_POLICIES, *MIXED_VARIANTS, *make_window_policies((0.25, 4.0))])
def test_router_accepts_every_policy(name: str) -> None:
    config = RouterConfig(**make_policy_settings(name, POLICY_SETTINGS))
    assert config.cache_scope == "off"
    assert config.max_batch_size == (int(name.removeprefix("batch-")) if name.startswith("batch") else 64)


@pytest.mark.parametrize("name", COMPAT_POLICIES)
def test_compat_mode_has_no_cache_and_eight_handlers(name: str) -> None:
    config = RouterConfig(**make_reproduction_policy_settings(name))
    assert (config.batching, config.recompute, config.max_handlers, config.dialect) == (name, True, 8, "batching")
    assert config.static_equal_lengths == (name == "static")


def test_window_is_a_multiple_of_the_mean_request_time() -> None:
    assert make_window_policies((0.25,)) == ("static-0.25",)
    assert make_policy_settings("static-0.25", POLICY_SETTINGS)["static_window_ms"] == 500
    assert "static_window_ms" not in make_policy_settings("static", POLICY_SETTINGS)


def test_variant_changes_only_its_setting() -> None:
    assert make_policy_settings("stall-50", POLICY_SETTINGS) == {"cache_scope": "off", "max_batch_size": 64,
                                                                 "max_decode_stall_ms": 50}


def test_policies_have_a_fixed_order() -> None:
    names = ["stall-10", "mixed", "static-4", "static", "none", "static-0.25", "batch-16"]
    assert sort_policies(names) == ["none", "static", "static-0.25", "static-4", "mixed", "batch-16", "stall-10"]


def test_every_policy_has_a_label() -> None:
    assert format_policy_label("static-0.25") == "static, window 0.25 of a request"
    assert format_policy_label("batch-4") == "mixed, max batch size 4"
    assert len({format_policy_label(name)
                for name in (*CACHE_POLICIES, *MIXED_VARIANTS)}) == len(CACHE_POLICIES) + len(MIXED_VARIANTS)
