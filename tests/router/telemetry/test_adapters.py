"""Tests of router/telemetry/adapters.py."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support.metrics_page import read

from router.errors import AdapterFailed
from router.telemetry import adapters
from router.telemetry.adapters import AdapterTally, CountedStore
from router.telemetry.families import MOST_NAMED, of_adapters
from router.telemetry.instruments import Meters


class Counted:
    def __init__(self) -> None:
        self._meters = Meters(family for family in of_adapters() if family.kind != "gauge")
        self.tally = AdapterTally(self._meters)

    def told(self, start: str) -> dict[str, float]:
        """Return the samples whose names begin with `start`, without those that are 0."""
        return {name: value for name, value in read(self._meters.page({})).items() if name.startswith(start) and value}


class Store:
    def __init__(self, answer: Mapping[str, Any] | Exception) -> None:
        self._answer = answer
        self.is_closed = False

    async def ask(self, **_: Any) -> Mapping[str, Any]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def close(self) -> None:
        self.is_closed = True


def test_loads_count_by_what_came_of_them_and_only_good_ones_by_their_time() -> None:
    counted = Counted()
    counted.tally.loaded(0.5, "")
    counted.tally.loaded(9.0, "it is broken")
    assert counted.told("weft_adapter_loads") == {
        'weft_adapter_loads{outcome="ok"}': 1, 'weft_adapter_loads{outcome="failed"}': 1}
    assert counted.told("weft_adapter_load_seconds_sum") == {"weft_adapter_load_seconds_sum": 0.5}


@pytest.mark.parametrize(("source", "label"), [("hub", "hub"), ("s3", "s3"), ('a "source"', "other")])
@pytest.mark.parametrize(("answer", "outcome"), [
    ({"digest": "d"}, "ok"), ({"error": "none", "kind": "missing"}, "missing"),
    ({"error": "closed", "kind": "forbidden"}, "missing"), ({"error": "odd", "kind": "invalid"}, "failed"),
    (AdapterFailed("gone"), "failed")])
def test_fetches_count_by_source_and_what_came_of_them(
        monkeypatch: pytest.MonkeyPatch, source: str, label: str, answer: Any, outcome: str) -> None:
    times = iter((1.0, 1.5))
    monkeypatch.setattr(adapters, "now", lambda: next(times))
    counted = Counted()
    store = CountedStore(Store(answer), counted.tally)
    if isinstance(answer, Exception):
        with pytest.raises(AdapterFailed):
            asyncio.run(store.ask(op="fetch", source=source, name="a"))
    else:
        assert asyncio.run(store.ask(op="fetch", source=source, name="a")) is answer
    assert counted.told("weft_adapter_fetches") == {
        f'weft_adapter_fetches{{source="{label}",outcome="{outcome}"}}': 1}
    assert counted.told("weft_adapter_fetch_seconds_sum") == (
        {"weft_adapter_fetch_seconds_sum": 0.5} if outcome == "ok" else {})


def test_other_questions_are_not_counted_and_to_close_it_closes_the_store() -> None:
    counted, inner = Counted(), Store({})
    store = CountedStore(inner, counted.tally)
    asyncio.run(store.ask(op="pin", digests=[]))
    asyncio.run(store.close())
    assert inner.is_closed
    assert counted.told("weft_adapter_fetch") == {}


def test_the_first_hundred_adapters_are_named() -> None:
    counted = Counted()
    for number in range(MOST_NAMED + 5):
        counted.tally.entered(f"adapter {number}")
        counted.tally.generated(f"adapter {number}", 3)
    counted.tally.entered("")
    requests, tokens = counted.told("weft_adapter_requests"), counted.told("weft_adapter_generated_tokens")
    assert len(requests) == len(tokens) == MOST_NAMED + 1
    assert requests['weft_adapter_requests{adapter="other"}'] == 6
    assert tokens['weft_adapter_generated_tokens{adapter="other"}'] == 15
