"""Test of fairness over HTTP between two tenants with keys, of which one has a hundred times as many clients."""

import asyncio
import json
from collections import Counter
from itertools import pairwise

import pytest
from support.in_process_server import body, play

from router.scheduler.events import Produced

WINDOW = 1000  # steps
WINDOWS = 2
OTHERS, FLOOD = 10, 1000  # clients that send requests in a loop; eight requests run at a time


class Service:
    """Tokens generated for each tenant, in windows of steps in which both tenants have waiting requests."""

    def __init__(self, core, weights):
        self._weights = weights
        self.tokens = Counter()
        self.marks = []
        self.done = asyncio.Event()
        self._core, self._complete = core, core.complete
        self._steps = 0
        core.complete = self._note

    def _note(self, order, answer, stopped, now):
        tenants = {s.number: s.request.tenant.name for s in self._core.sequences}
        events = self._complete(order, answer, stopped, now)
        for event in events:
            if isinstance(event, Produced):
                for number, count in event.counts.items():
                    self.tokens[tenants[number]] += count
        self._steps += 1
        if self._steps % WINDOW == 0:
            self.marks.append([self.tokens[name] / weight for name, weight in self._weights.items()])
            if len(self.marks) > WINDOWS:
                self.done.set()
        return events

    def fairness(self):
        shares = [[b - a for a, b in zip(*marks, strict=True)] for marks in pairwise(self.marks)]
        return [sum(each) ** 2 / (len(each) * sum(x * x for x in each)) for each in shares]


@pytest.mark.slow
@pytest.mark.parametrize("weight", [pytest.param(1.0, marks=pytest.mark.long), 3.0])
def test_tenants_with_keys_get_their_shares(tmp_path, weight):
    weights = {"flood": 1.0, "other": weight}
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({f"sk-{name}": {"tenant": name, "weight": weight} for name, weight in weights.items()}))

    async def story(weft):
        service = Service(weft.core, weights)

        async def ask_again(name, number):
            headers = {"authorization": f"Bearer sk-{name}"}
            while not service.done.is_set():
                async with weft.http.post("/generate", json=body(f"{name} {number}", 30), headers=headers) as answer:
                    assert answer.status == 200

        asking = [asyncio.create_task(ask_again(name, number))
                  for name, count in (("flood", FLOOD), ("other", OTHERS)) for number in range(count)]
        await service.done.wait()
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert len(service.fairness()) == WINDOWS
        assert min(service.fairness()) >= 0.98
        await weft.check_idle()
    play(story, tmp_path, http=True, api_keys=str(keys), max_batch_size=8, max_concurrent_requests=2000)
