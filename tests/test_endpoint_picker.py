"""A picker that reads our gauges every 50 ms, as the gateway of Kubernetes does, serves a load better than turns do.

Three replicas of the real scheduler run under a virtual clock, and the picker reads the pages that they would answer.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from math import inf
from statistics import fmean
from typing import Any

import pytest
from support.endpoint_picker import ReplicaGauges, pick_replica
from support.scheduling.scheduler_simulation import SchedulerSimulation, TrueCosts

from router.request import LoadableResource, Request
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import LoadResource
from router.simulation.run_stats import percentile
from router.telemetry.server_metrics import ServerMetrics
from router.text.prompt_encoder import TokenLimits

COSTS = TrueCosts(seconds_per_step=0.01, seconds_per_row=0.0002, seconds_per_prompt_token=0.00005,
                  seconds_per_slot=1e-7)
NUM_REPLICAS, NUM_REQUESTS, NUM_ADAPTERS, NUM_SLOTS = 3, 300, 12, 4
ARRIVALS_PER_SECOND = 14.0
SCRAPE_SECONDS, LOAD_SECONDS = 0.05, 0.2
ADAPTERS = [LoadableResource("adapter", number, 100) for number in range(1, NUM_ADAPTERS + 1)]
ADAPTER_NAMES = {adapter: (f"adapter-{adapter.id}",) for adapter in ADAPTERS}
LIMITS = TokenLimits(max_input_tokens=4000, max_total_tokens=8000)


class Replica(SchedulerSimulation):
    """A simulated replica that loads adapters, and can run until a moment."""

    def __init__(self) -> None:
        super().__init__(SchedulerSettings(max_batch_size=16, max_active_adapters=NUM_SLOTS, adapter_cycle_seconds=0.1,
                                           max_concurrent_requests=NUM_REQUESTS), COSTS, num_blocks=2000)
        self.scheduler.on_shards_ready(replace(COSTS.make_model_info(2000), adapters=True, adapter_bytes=10**6), 1, 0.0)
        self.metrics = ServerMetrics(self.scheduler, LIMITS, 1, with_adapters=True)
        self.num_loads = 0
        self._loads_and_unloads: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def scrape(self) -> str:
        return self.metrics.render(is_ready=True, has_shards=True, adapter_names=ADAPTER_NAMES)

    def run_until(self, moment: float) -> None:
        while (at := self._next_event_at()) <= moment and at < inf:
            if self._loads_and_unloads and self._loads_and_unloads[0][0] == at:
                self.now = at
                heapq.heappop(self._loads_and_unloads)[2]()
            else:
                self._advance()
            self._plan()

    def _next_event_at(self) -> float:
        answered_at = self._steps_in_flight[0].answered_at if self._steps_in_flight else inf
        arrives_at = self._arrivals[0][0] if self._arrivals else inf
        moved_at = self._loads_and_unloads[0][0] if self._loads_and_unloads else inf
        wake_at = inf if self.scheduler.wake_at is None else max(self.scheduler.wake_at, self.now)
        return min(answered_at, arrives_at, moved_at, wake_at)

    def _plan(self) -> None:
        while (plan := self.scheduler.plan(self.now)) is not None:
            self._send(plan)
        for command in self.scheduler.take_resource_commands(self.now):
            is_load = isinstance(command, LoadResource)
            self.num_loads += is_load
            method = self.scheduler.on_resource_loaded if is_load else self.scheduler.on_resource_unloaded
            at = self.now + (LOAD_SECONDS if is_load else 0.0)
            heapq.heappush(self._loads_and_unloads, (
                at, next(self._numbers), lambda method=method, resource=command.resource, at=at: method(resource, at)))


@dataclass
class Outcome:
    """What one way of choosing replicas led to."""

    first_token_seconds: list[float] = field(default_factory=list)
    num_loads: int = 0
    picks: Counter[int] = field(default_factory=Counter)


def make_requests(seed: int) -> list[tuple[float, Request]]:
    """Return requests with their times: one in eight has a long answer, and some adapters are used much more."""
    draw, at, requests = random.Random(seed), 0.0, []
    for number in range(NUM_REQUESTS):
        at += draw.expovariate(ARRIVALS_PER_SECOND)
        adapter = ADAPTERS[min(int(draw.paretovariate(0.7)), NUM_ADAPTERS) - 1]
        prompt = tuple(draw.randrange(255) for _ in range(draw.choice((50, 50, 50, 2000))))
        requests.append((at, Request(str(number), prompt, max_new_tokens=draw.choice((*[20] * 7, 400)), adapter=adapter,
                                     adapter_name=f"adapter-{adapter.id}")))
    return requests


def serve(requests: Sequence[tuple[float, Request]], choose: Callable[[Sequence[str], Request], int]) -> Outcome:
    """Serve the requests by three replicas; `choose` gets the pages of the last scrape."""
    replicas, outcome = [Replica() for _ in range(NUM_REPLICAS)], Outcome()
    pages, scraped_at = [replica.scrape() for replica in replicas], 0.0
    for at, request in requests:
        while scraped_at + SCRAPE_SECONDS <= at:
            scraped_at += SCRAPE_SECONDS
            for replica in replicas:
                replica.run_until(scraped_at)
            pages = [replica.scrape() for replica in replicas]
        index = choose(pages, request)
        outcome.picks[index] += 1
        replicas[index].add_arrival(request, at)
    for replica in replicas:
        replica.run_until(inf)
        outcome.num_loads += replica.num_loads
        outcome.first_token_seconds += [history.seconds_to_first_token for history in replica.histories.values()]
    assert len(outcome.first_token_seconds) == len(requests)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_picker_beats_taking_turns(seed: int) -> None:
    """First tokens come three times as early, 99 % of them as well, and adapters are loaded half as often."""
    requests, draw, turns = make_requests(seed), random.Random(seed), cycle(range(NUM_REPLICAS))
    by_turns = serve(requests, lambda *_: next(turns))
    by_gauges = serve(requests, lambda pages, request: pick_replica(
        [ReplicaGauges.from_page(page) for page in pages], request.adapter_name, draw))
    assert min(by_gauges.picks.values()) > NUM_REQUESTS // (2 * NUM_REPLICAS)
    assert by_gauges.num_loads < by_turns.num_loads / 2
    assert fmean(by_gauges.first_token_seconds) < fmean(by_turns.first_token_seconds) / 3
    assert percentile(by_gauges.first_token_seconds, 99) < percentile(by_turns.first_token_seconds, 99)


def make_gauges(**gauges: Any) -> ReplicaGauges:
    idle = ReplicaGauges(0, 0, 0.0, 16, 100, 2, frozenset(), frozenset(), 0.0)
    return replace(idle, **gauges)


@pytest.mark.parametrize(("better", "worse"), [
    ({}, {"num_waiting": 1}), ({"cache_usage": 0.2}, {"cache_usage": 0.3}),
    ({"running_adapters": frozenset({"loom"})}, {}),
    ({"waiting_adapters": frozenset({"loom"})}, {"running_adapters": frozenset({"a", "b"})}),
])
def test_each_gauge_decides_where_the_others_are_equal(better: dict[str, Any], worse: dict[str, Any]) -> None:
    replicas = [make_gauges(**worse), make_gauges(**better), make_gauges(**worse)]
    assert pick_replica(replicas, "loom", random.Random(1)) == 1


@pytest.mark.parametrize("broken", [
    lambda page: page.replace("vllm:num_requests_waiting", "vllm:num_requests_queued"),
    lambda page: page.replace("TYPE vllm:kv_cache_usage_perc gauge", "TYPE vllm:kv_cache_usage_perc counter"),
    lambda page: page.replace("max_lora=", "max_loras="),
    lambda page: page + 'vllm:lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""} 1\n',
], ids=["name", "type", "label", "two series"])
def test_page_that_breaks_the_protocol_is_refused(broken: Callable[[str], str]) -> None:
    page = Replica().scrape()
    assert ReplicaGauges.from_page(page).max_adapters == NUM_SLOTS
    with pytest.raises(ValueError, match="vllm:"):
        ReplicaGauges.from_page(broken(page))
