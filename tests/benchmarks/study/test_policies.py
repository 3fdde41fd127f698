import pytest

from benchmarks.study.policies import CACHED, STUDIED, VARIANTS, House, cached, compat, in_order, windows, words
from router.config import RouterConfig

HOUSE = House(max_batch_size=64, mean_seconds=2.0)


@pytest.mark.parametrize("name", [*CACHED, *VARIANTS, *windows((0.25, 4.0))])
def test_the_router_takes_every_policy(name: str) -> None:
    config = RouterConfig(**cached(name, HOUSE))
    assert config.cache_scope == "off"
    assert config.max_batch_size == (int(name.removeprefix("batch-")) if name.startswith("batch") else 64)


@pytest.mark.parametrize("name", STUDIED)
def test_the_studys_mode_has_no_cache_and_eight_at_once(name: str) -> None:
    config = RouterConfig(**compat(name))
    assert (config.batching, config.recompute, config.max_handlers, config.dialect) == (name, True, 8, "batching")
    assert config.static_equal_lengths == (name == "static")


def test_a_window_is_so_many_mean_times_of_a_request() -> None:
    assert windows((0.25,)) == ("static-0.25",)
    assert cached("static-0.25", HOUSE)["static_window_ms"] == 500
    assert "static_window_ms" not in cached("static", HOUSE)


def test_a_swept_setting_is_the_only_one_that_differs() -> None:
    assert cached("stall-50", HOUSE) == {"cache_scope": "off", "max_batch_size": 64, "max_decode_stall_ms": 50}


def test_policies_are_shown_in_one_order() -> None:
    names = ["stall-10", "mixed", "static-4", "static", "none", "static-0.25", "batch-16"]
    assert in_order(names) == ["none", "static", "static-0.25", "static-4", "mixed", "batch-16", "stall-10"]


def test_every_policy_has_words() -> None:
    assert words("static-0.25") == "static, window 0.25 of a request"
    assert words("batch-4") == "mixed, max batch size 4"
    assert len({words(name) for name in (*CACHED, *VARIANTS)}) == len(CACHED) + len(VARIANTS)
