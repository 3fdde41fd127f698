"""Test of fairness over HTTP between two tenants with keys, of which one has a hundred times as many clients."""

import asyncio
import json
from collections import Counter
from itertools import pairwise

import pytest
from support.scheduling.method_overrides import override_methods
from support.servers.in_process_server import make_generate_body, play_scenario

from router.scheduler.events import TokensGenerated

NUM_WINDOWS = 2
NUM_OTHER_CLIENTS, NUM_FLOOD_CLIENTS = 10, 1000  # clients that send requests in a loop; eight requests run at a time


class TenantTokenCounter:
    """Tokens generated for each tenant, in windows of steps in which both tenants have waiting requests."""

    def __init__(self, scheduler, weights, steps_per_window):
        self._weights, self._steps_per_window = weights, steps_per_window
        self.tokens_by_tenant = Counter()
        self.window_totals = []
        self.done = asyncio.Event()
        self._scheduler, self._complete = scheduler, scheduler.complete_step
        self._steps = 0
        override_methods(scheduler, complete_step=self._complete_and_count)

    def _complete_and_count(self, last_message_number, result, stop_token_counts, now):
        tenants = {s.id: s.request.tenant.name for s in self._scheduler.sequences}
        events = self._complete(last_message_number, result, stop_token_counts, now)
        for event in events:
            if isinstance(event, TokensGenerated):
                for number, count in event.token_counts.items():
                    self.tokens_by_tenant[tenants[number]] += count
        self._steps += 1
        if self._steps % self._steps_per_window == 0:
            self.window_totals.append([self.tokens_by_tenant[name] / weight for name, weight in self._weights.items()])
            if len(self.window_totals) > NUM_WINDOWS:
                self.done.set()
        return events

    def compute_fairness(self):
        shares = [[b - a for a, b in zip(*marks, strict=True)] for marks in pairwise(self.window_totals)]
        return [sum(each) ** 2 / (len(each) * sum(x * x for x in each)) for each in shares]


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "steps_per_window"), [
    (3.0, 300), *(pytest.param(weight, 1000, marks=pytest.mark.long) for weight in (1.0, 3.0))])
def test_tenants_share_tokens_by_weight(tmp_path, weight, steps_per_window):
    weights = {"flood": 1.0, "other": weight}
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({f"sk-{name}": {"tenant": name, "weight": weight} for name, weight in weights.items()}))

    async def scenario(weft):
        service = TenantTokenCounter(weft.scheduler, weights, steps_per_window)

        async def send_requests_in_a_loop(tenant, number):
            headers = {"authorization": f"Bearer sk-{tenant}"}
            while not service.done.is_set():
                async with weft.http_session.post("/generate", json=make_generate_body(f"{tenant} {number}", 30),
                                                  headers=headers) as answer:
                    assert answer.status == 200

        client_tasks = [asyncio.create_task(send_requests_in_a_loop(name, number))
                        for name, count in (("flood", NUM_FLOOD_CLIENTS), ("other", NUM_OTHER_CLIENTS))
                        for number in range(count)]
        await service.done.wait()
        for task in client_tasks:
            task.cancel()
        await asyncio.gather(*client_tasks, return_exceptions=True)
        assert len(service.compute_fairness()) == NUM_WINDOWS
        assert min(service.compute_fairness()) >= 0.98
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, api_keys=str(keys), max_batch_size=8, max_concurrent_requests=2000)
