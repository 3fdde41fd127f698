"""Tests of router/telemetry/adapter_metrics.py."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support.metrics_page import parse_metrics

from router.errors import AdapterLoadFailed
from router.telemetry import adapter_metrics
from router.telemetry.adapter_metrics import AdapterMetrics, InstrumentedAdapterStore
from router.telemetry.instruments import MetricRegistry
from router.telemetry.metric_definitions import ADAPTER_FAMILIES, MAX_NAMED_ADAPTERS


class AdapterMetricsReader:
    def __init__(self) -> None:
        self._registry = MetricRegistry(family for family in ADAPTER_FAMILIES if family.metric_type != "gauge")
        self.adapter_metrics = AdapterMetrics(self._registry)

    def nonzero_samples(self, prefix: str) -> dict[str, float]:
        """Return the samples whose names begin with `prefix`, without those that are 0."""
        return {name: value for name, value in parse_metrics(self._registry.render({})).items()
                if name.startswith(prefix) and value}


class FakeAdapterStore:
    def __init__(self, answer: Mapping[str, Any] | Exception) -> None:
        self._answer = answer
        self.is_closed = False

    async def send_request(self, **_: Any) -> Mapping[str, Any]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def close(self) -> None:
        self.is_closed = True


def test_loads_are_counted_by_outcome_and_timed_if_successful() -> None:
    metrics = AdapterMetricsReader()
    metrics.adapter_metrics.observe_load(0.5, "")
    metrics.adapter_metrics.observe_load(9.0, "it is broken")
    assert metrics.nonzero_samples("weft_adapter_loads") == {
        'weft_adapter_loads{outcome="ok"}': 1, 'weft_adapter_loads{outcome="failed"}': 1}
    assert metrics.nonzero_samples("weft_adapter_load_seconds_sum") == {"weft_adapter_load_seconds_sum": 0.5}


@pytest.mark.parametrize(("source", "label"), [("hub", "hub"), ("s3", "s3"), ('a "source"', "other")])
@pytest.mark.parametrize(("answer", "outcome"), [
    ({"digest": "d"}, "ok"), ({"error": "none", "kind": "missing"}, "missing"),
    ({"error": "closed", "kind": "forbidden"}, "missing"), ({"error": "odd", "kind": "invalid"}, "failed"),
    (AdapterLoadFailed("gone"), "failed")])
def test_fetches_are_counted_by_source_and_outcome(
        monkeypatch: pytest.MonkeyPatch, source: str, label: str, answer: Any, outcome: str) -> None:
    times = iter((1.0, 1.5))
    monkeypatch.setattr(adapter_metrics, "now", lambda: next(times))
    metrics = AdapterMetricsReader()
    store = InstrumentedAdapterStore(FakeAdapterStore(answer), metrics.adapter_metrics)
    if isinstance(answer, Exception):
        with pytest.raises(AdapterLoadFailed):
            asyncio.run(store.send_request(op="fetch", source=source, name="a"))
    else:
        assert asyncio.run(store.send_request(op="fetch", source=source, name="a")) is answer
    assert metrics.nonzero_samples("weft_adapter_fetches") == {
        f'weft_adapter_fetches{{source="{label}",outcome="{outcome}"}}': 1}
    assert metrics.nonzero_samples("weft_adapter_fetch_seconds_sum") == (
        {"weft_adapter_fetch_seconds_sum": 0.5} if outcome == "ok" else {})


def test_other_store_requests_are_not_counted_and_close_is_forwarded() -> None:
    metrics, inner = AdapterMetricsReader(), FakeAdapterStore({})
    store = InstrumentedAdapterStore(inner, metrics.adapter_metrics)
    asyncio.run(store.send_request(op="pin", digests=[]))
    asyncio.run(store.close())
    assert inner.is_closed
    assert metrics.nonzero_samples("weft_adapter_fetch") == {}


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
