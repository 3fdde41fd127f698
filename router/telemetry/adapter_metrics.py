"""Metrics of adapters: fetches, loads, unloads, requests and generated tokens."""

import time
from collections.abc import Mapping
from typing import Any

from router.adapters.registry import AdapterStore
from router.config import ADAPTER_SOURCES
from router.telemetry.instruments import OTHER_LABEL, MetricRegistry

now = time.monotonic


class AdapterMetrics:
    """Metrics of adapters: fetches, loads, unloads, requests and generated tokens."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._registry = registry
        self.num_unloads = registry.counter("weft_adapter_unloads")
        self._num_loads = registry.counters_by_label("weft_adapter_loads")
        self._load_seconds = registry.histogram("weft_adapter_load_seconds")
        self._fetch_seconds = registry.histogram("weft_adapter_fetch_seconds")

    def observe_load(self, seconds: float, failure_reason: str) -> None:
        """Count a load. A non-empty `failure_reason` means that the load failed."""
        self._num_loads["failed" if failure_reason else "ok"].add()
        if not failure_reason:
            self._load_seconds.observe(seconds)

    def observe_fetch(self, source: str, outcome: str, seconds: float) -> None:
        self._registry.counter("weft_adapter_fetches", source if source in ADAPTER_SOURCES else OTHER_LABEL,
                               outcome).add()
        if outcome == "ok":
            self._fetch_seconds.observe(seconds)

    def count_request(self, adapter_name: str) -> None:
        """Count an accepted request. The name of a private adapter is empty and counted as OTHER_LABEL."""
        self._registry.counter_for_open_label("weft_adapter_requests", adapter_name or OTHER_LABEL).add()

    def count_generated_tokens(self, adapter_name: str, num_tokens: int) -> None:
        self._registry.counter_for_open_label("weft_adapter_generated_tokens",
                                              adapter_name or OTHER_LABEL).add(num_tokens)


class InstrumentedAdapterStore:
    """Store whose fetches are counted and timed."""

    def __init__(self, store: AdapterStore, metrics: AdapterMetrics) -> None:
        self._store = store
        self._metrics = metrics

    async def send_request(self, **request: Any) -> Mapping[str, Any]:
        started_at, outcome = now(), "failed"
        try:
            answer = await self._store.send_request(**request)
            if "error" not in answer:
                outcome = "ok"
            elif answer.get("kind") in {"missing", "forbidden"}:
                outcome = "missing"
        finally:
            if request["op"] == "fetch":
                self._metrics.observe_fetch(request["source"], outcome, now() - started_at)
        return answer

    async def close(self) -> None:
        await self._store.close()
