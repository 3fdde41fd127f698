"""The compared batching policies, by name, as router settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STATIC_PREFIX = "static-"  # prefix; the window follows, in mean latencies of a single request
DEFAULT_WINDOWS = 0.25, 1.0, 4.0
COMPAT_POLICIES = "nobatch", "static", "dynamic"  # as the study calls them
CACHE_POLICIES = "none", "static", "pause", "mixed"
NONE_POLICY, MIXED_POLICY, NOBATCH_POLICY, DYNAMIC_POLICY = "none", "mixed", "nobatch", "dynamic"
SWEPT_SETTINGS = {"batch": "max_batch_size", "stall": "max_decode_stall_ms", "prefill": "max_batch_prefill_tokens"}
MIXED_VARIANTS = (  # mixed steps with one setting changed
    "batch-4", "batch-16", "batch-32", "stall-10", "stall-50", "stall-500",
    "prefill-128", "prefill-512", "prefill-1024")
DISPLAY_ORDER = ("nobatch", "none", "static", "pause", "mixed", "dynamic", *MIXED_VARIANTS)
NUM_HANDLERS = 8  # of the study's server
POLICY_LABELS = {"nobatch": "no batching", "dynamic": "dynamic batching", "mixed": "continuous, mixed steps",
                 "pause": "continuous, pause", "none": "no batching"}


@dataclass(frozen=True, slots=True)
class SharedPolicySettings:
    """Settings shared by all policies of a shape."""

    max_batch_size: int
    mean_request_seconds: float = 1.0  # mean latency of a single request


def sort_policies(names: Iterable[str]) -> list[str]:
    """Return the names in display order: from less to more batching, static windows after static without one."""
    def sort_key(name: str) -> tuple[int, float]:
        kind = "static" if is_static_policy(name) else name
        return DISPLAY_ORDER.index(kind), float(name.removeprefix(STATIC_PREFIX)) if name != kind else 0.0
    return sorted(names, key=sort_key)


def is_static_policy(name: str) -> bool:
    return name == "static" or name.startswith(STATIC_PREFIX)


def make_window_policies(window_lengths: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"{STATIC_PREFIX}{window:g}" for window in window_lengths)


def make_policy_settings(name: str, shared_settings: SharedPolicySettings) -> dict[str, Any]:
    """Return the router settings of a policy outside the study's mode.

    The prefix cache is off, so that all policies do the same work."""
    common = {"cache_scope": "off", "max_batch_size": shared_settings.max_batch_size}
    setting, _, value = name.partition("-")
    if setting in SWEPT_SETTINGS:
        return common | {SWEPT_SETTINGS[setting]: int(value)}
    if setting == "static":
        window_setting = {"static_window_ms": 1e3 * shared_settings.mean_request_seconds
                          * float(value)} if value else {}
        return common | {"batching": "static", **window_setting}
    return common | dict(BATCHING_SETTINGS[name])


BATCHING_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "none": {"batching": "none"}, "pause": {"prefill_policy": "pause"}, "mixed": {"prefill_policy": "mixed"},
}


def make_reproduction_policy_settings(name: str) -> dict[str, Any]:
    """Return the router settings of a policy in the study's mode.

    These are: no KV cache, eight handlers, and static groups only of requests with equal lengths."""
    equal_lengths_setting = {"static_equal_lengths": True} if name == "static" else {}
    return {"batching": name, "recompute": True, "cache_scope": "off", "dialect": "batching",
            "max_handlers": NUM_HANDLERS, **equal_lengths_setting}


def format_policy_label(policy: str) -> str:
    setting, _, value = policy.partition("-")
    if setting in SWEPT_SETTINGS:
        return f"mixed, {SWEPT_SETTINGS[setting].replace('_', ' ')} {value}"
    if value:
        return f"static, window {value} of a request"
    return POLICY_LABELS.get(policy, policy)
