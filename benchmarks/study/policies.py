"""The compared batching policies, by name, as router settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STATIC = "static-"  # prefix; the window follows, in mean latencies of a single request
WINDOWS = 0.25, 1.0, 4.0
STUDIED = "nobatch", "static", "dynamic"  # as the study calls them
CACHED = "none", "static", "pause", "mixed"
FIXED, CONTINUOUS, NOBATCH, DYNAMIC = "none", "mixed", "nobatch", "dynamic"
SWEPT = {"batch": "max_batch_size", "stall": "max_decode_stall_ms", "prefill": "max_batch_prefill_tokens"}
VARIANTS = (  # mixed steps with one setting changed
    "batch-4", "batch-16", "batch-32", "stall-10", "stall-50", "stall-500",
    "prefill-128", "prefill-512", "prefill-1024")
SHOWN = ("nobatch", "none", "static", "pause", "mixed", "dynamic", *VARIANTS)
HANDLERS = 8  # of the study's server
WORDS = {"nobatch": "no batching", "dynamic": "dynamic batching", "mixed": "continuous, mixed steps",
         "pause": "continuous, pause", "none": "no batching"}


@dataclass(frozen=True, slots=True)
class House:
    """Settings shared by all policies of a shape."""

    max_batch_size: int
    mean_seconds: float = 1.0  # mean latency of a single request


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names in display order: from less to more batching, static windows after static without one."""
    def place(name: str) -> tuple[int, float]:
        kind = "static" if is_static(name) else name
        return SHOWN.index(kind), float(name.removeprefix(STATIC)) if name != kind else 0.0
    return sorted(names, key=place)


def is_static(name: str) -> bool:
    return name == "static" or name.startswith(STATIC)


def windows(names: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"{STATIC}{window:g}" for window in names)


def cached(name: str, house: House) -> dict[str, Any]:
    """Return the router settings of a policy outside the study's mode.

    The prefix cache is off, so that all policies do the same work."""
    common = {"cache_scope": "off", "max_batch_size": house.max_batch_size}
    word, _, value = name.partition("-")
    if word in SWEPT:
        return common | {SWEPT[word]: int(value)}
    if word == "static":
        window = {"static_window_ms": 1e3 * house.mean_seconds * float(value)} if value else {}
        return common | {"batching": "static", **window}
    return common | dict(POLICIES[name])


POLICIES: Mapping[str, Mapping[str, Any]] = {
    "none": {"batching": "none"}, "pause": {"prefill_policy": "pause"}, "mixed": {"prefill_policy": "mixed"},
}


def compat(name: str) -> dict[str, Any]:
    """Return the router settings of a policy in the study's mode.

    These are: no KV cache, eight handlers, and static groups only of requests with equal lengths."""
    alike = {"static_equal_lengths": True} if name == "static" else {}
    return {"batching": name, "recompute": True, "cache_scope": "off", "dialect": "batching",
            "max_handlers": HANDLERS, **alike}


def words(policy: str) -> str:
    name, _, value = policy.partition("-")
    if name in SWEPT:
        return f"mixed, {SWEPT[name].replace('_', ' ')} {value}"
    if value:
        return f"static, window {value} of a request"
    return WORDS.get(policy, policy)
