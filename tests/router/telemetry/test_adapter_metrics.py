"""Metrics of adapters, in router/telemetry/server_metrics.py, and what the registry reports to them."""

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from support.metrics_page import parse_metrics
from support.servers.fake_adapter_store import make_version_answer
from support.servers.scripted_adapters import FakeResourceNumbering

from router.adapters import registry
from router.adapters.reference import AdapterReference
from router.adapters.registry import AdapterRegistry
from router.config import RouterConfig
from router.errors import AdapterLoadFailed, AdapterNotFound
from router.telemetry.instruments import MetricRegistry
from router.telemetry.metric_definitions import ADAPTER_FAMILIES, MAX_NAMED_ADAPTERS
from router.telemetry.server_metrics import AdapterMetrics


class AdapterMetricsReader:
    def __init__(self) -> None:
        self._registry = MetricRegistry(family for family in ADAPTER_FAMILIES if family.metric_type != "gauge")
        self.adapter_metrics = AdapterMetrics(self._registry)

    def nonzero_samples(self, prefix: str) -> dict[str, float]:
        """Return the samples whose names begin with `prefix`, without those that are 0."""
        return {name: value for name, value in parse_metrics(self._registry.render({})).items()
                if name.startswith(prefix) and value}


class ScriptedStore:
    """Store that gives every request but `pin` the same answer."""

    def __init__(self, answer: Mapping[str, Any] | Exception) -> None:
        self._answer = answer

    async def send_request(self, **request: Any) -> Mapping[str, Any]:
        if request["op"] == "pin":
            return {}
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def close(self) -> None:
        pass


def make_adapter_registry(answer: Mapping[str, Any] | Exception, metrics: AdapterMetrics) -> AdapterRegistry:
    return AdapterRegistry(RouterConfig(), ScriptedStore(answer), FakeResourceNumbering(),
                           observe_fetch=metrics.observe_fetch)


def test_loads_are_counted_by_outcome_and_timed_if_successful() -> None:
    metrics = AdapterMetricsReader()
    metrics.adapter_metrics.observe_load(0.5, "")
    metrics.adapter_metrics.observe_load(9.0, "it is broken")
    assert metrics.nonzero_samples("weft_adapter_loads") == {
        'weft_adapter_loads{outcome="ok"}': 1, 'weft_adapter_loads{outcome="failed"}': 1}
    assert metrics.nonzero_samples("weft_adapter_load_seconds_sum") == {"weft_adapter_load_seconds_sum": 0.5}


@pytest.mark.parametrize(("source", "label"), [("hub", "hub"), ("s3", "s3"), ('a "source"', "other")])
@pytest.mark.parametrize(("answer", "outcome"), [
    (make_version_answer("d"), "ok"), ({"error": "none", "kind": "missing"}, "missing"),
    ({"error": "closed", "kind": "forbidden"}, "missing"), ({"error": "odd", "kind": "invalid"}, "failed"),
    (AdapterLoadFailed("gone"), "failed")])
def test_fetches_are_counted_by_source_and_outcome(
        monkeypatch: pytest.MonkeyPatch, source: str, label: str, answer: Any, outcome: str) -> None:
    times = count(1.0, 0.5)
    monkeypatch.setattr(registry, "now", lambda: next(times))
    metrics = AdapterMetricsReader()
    resolving = make_adapter_registry(answer, metrics.adapter_metrics).resolve(AdapterReference("a", source))
    if outcome == "ok":
        resolved = asyncio.run(resolving)
        assert resolved is not None
        assert resolved.digest == "d"
    else:
        with pytest.raises(AdapterNotFound if outcome == "missing" else AdapterLoadFailed):
            asyncio.run(resolving)
    assert metrics.nonzero_samples("weft_adapter_fetches") == {
        f'weft_adapter_fetches{{source="{label}",outcome="{outcome}"}}': 1}
    assert metrics.nonzero_samples("weft_adapter_fetch_seconds_sum") == (
        {"weft_adapter_fetch_seconds_sum": 0.5} if outcome == "ok" else {})


def test_other_store_requests_are_not_counted() -> None:
    metrics = AdapterMetricsReader()
    adapters = make_adapter_registry(make_version_answer("d") | {"private": True}, metrics.adapter_metrics)

    async def main() -> None:
        for token in ("one", "two"):  # the second one asks only whether it is allowed
            await adapters.resolve(AdapterReference("a", source_token=token))

    asyncio.run(main())
    assert metrics.nonzero_samples("weft_adapter_fetches") == {
        'weft_adapter_fetches{source="hub",outcome="ok"}': 1}


def test_number_of_adapter_labels_is_limited() -> None:
    metrics = AdapterMetricsReader()
    for number in range(MAX_NAMED_ADAPTERS + 5):
        metrics.adapter_metrics.count_request(f"adapter {number}")
        metrics.adapter_metrics.count_generated_tokens(f"adapter {number}", 3)
    metrics.adapter_metrics.count_request("")
    requests, tokens = metrics.nonzero_samples("weft_adapter_requests"), metrics.nonzero_samples(
        "weft_adapter_generated_tokens")
    assert len(requests) == len(tokens) == MAX_NAMED_ADAPTERS + 1
    assert requests['weft_adapter_requests{adapter="other"}'] == 6
    assert tokens['weft_adapter_generated_tokens{adapter="other"}'] == 15
