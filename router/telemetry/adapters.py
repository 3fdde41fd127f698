"""Metrics of adapters: fetches, loads, unloads, requests and generated tokens."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from router.config import SOURCES
from router.telemetry.instruments import OTHER, Meters

now = time.monotonic


class AdapterTally:
    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self.unloads = meters.counter("weft_adapter_unloads")
        self._loads = meters.counters("weft_adapter_loads")
        self._load_seconds = meters.histogram("weft_adapter_load_seconds")
        self._fetch_seconds = meters.histogram("weft_adapter_fetch_seconds")

    def loaded(self, seconds: float, reason: str) -> None:
        """Count a load. A non-empty `reason` means that the load failed."""
        self._loads["failed" if reason else "ok"].add()
        if not reason:
            self._load_seconds.observe(seconds)

    def fetched(self, source: str, outcome: str, seconds: float) -> None:
        self._meters.counter("weft_adapter_fetches", source if source in SOURCES else OTHER, outcome).add()
        if outcome == "ok":
            self._fetch_seconds.observe(seconds)

    def entered(self, name: str) -> None:
        """Count an accepted request. The name of a private adapter is empty and counted as OTHER."""
        self._meters.counter_for("weft_adapter_requests", name or OTHER).add()

    def generated(self, name: str, num_tokens: int) -> None:
        self._meters.counter_for("weft_adapter_generated_tokens", name or OTHER).add(num_tokens)


class Store(Protocol):
    async def ask(self, **question: Any) -> Mapping[str, Any]: ...

    async def close(self) -> None: ...


class CountedStore:
    """Store whose fetches are counted and timed."""

    def __init__(self, store: Store, tally: AdapterTally) -> None:
        self._store = store
        self._tally = tally

    async def ask(self, **question: Any) -> Mapping[str, Any]:
        began, outcome = now(), "failed"
        try:
            answer = await self._store.ask(**question)
            outcome = outcome_of(answer)
        finally:
            if question["op"] == "fetch":
                self._tally.fetched(question["source"], outcome, now() - began)
        return answer

    async def close(self) -> None:
        await self._store.close()


def outcome_of(answer: Mapping[str, Any]) -> str:
    if "error" not in answer:
        return "ok"
    return "missing" if answer.get("kind") in {"missing", "forbidden"} else "failed"
