"""Overload over HTTP: clients that send more than the server can hold, come back at once, or cannot wait."""

import asyncio
from collections import Counter

import pytest
from support.scheduling.method_overrides import override_methods
from support.servers.in_process_server import make_generate_body, play_scenario

CAPACITY, OUTPUT_TOKENS = 8, 12


class AdmissionWatch:
    """Number of the scheduler's sequences after each submission; `is_full` is set at CAPACITY."""

    def __init__(self, scheduler):
        self.nums_sequences, self.is_full = [], asyncio.Event()
        self._scheduler, self._submit = scheduler, scheduler.submit
        override_methods(scheduler, submit=self._submit_and_count)

    def _submit_and_count(self, request, now):
        events = self._submit(request, now)
        self.nums_sequences.append(len(self._scheduler.sequences))
        if self.nums_sequences[-1] == CAPACITY:
            self.is_full.set()
        return events


async def generate_until_accepted(weft, number, statuses):
    """Send a request again at once while it is refused, as careless clients do; return the text."""
    while True:
        answer = await weft.generate(f"{number}", OUTPUT_TOKENS)
        statuses[answer.status] += 1
        if answer.status == 200:
            return (await answer.json())["generated_text"]
        assert (answer.status, int(answer.headers["Retry-After"]) >= 1) == (429, True)


def test_excess_is_refused_exactly_and_whole_requests_are_served_beside_it(tmp_path):
    async def scenario(weft):
        watch = AdmissionWatch(weft.scheduler)
        running = [asyncio.create_task(weft.generate(f"{number}", OUTPUT_TOKENS)) for number in range(CAPACITY)]
        await watch.is_full.wait()
        refused = await asyncio.gather(*(weft.generate("more", OUTPUT_TOKENS) for _ in range(4 * CAPACITY)))
        assert Counter(answer.status for answer in refused) == {429: 4 * CAPACITY}
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
        weft.gate.release_all()
        for number, answer in enumerate(await asyncio.gather(*running)):
            assert (await answer.json())["generated_text"] == weft.compute_expected_text(f"{number}", OUTPUT_TOKENS)
        page = await (await weft.http_session.get("/metrics")).text()
        assert f'tgi_request_failure{{err="overloaded"}} {4 * CAPACITY}' in page
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, gated=True, max_concurrent_requests=CAPACITY)


@pytest.mark.parametrize("num_clients", [5 * CAPACITY, pytest.param(500, marks=pytest.mark.long)])
def test_clients_that_retry_at_once_cause_no_work_beyond_admission(tmp_path, num_clients):
    async def scenario(weft):
        watch, statuses = AdmissionWatch(weft.scheduler), Counter()
        texts = await asyncio.gather(*(generate_until_accepted(weft, number, statuses)
                                       for number in range(num_clients)))
        assert texts == [weft.compute_expected_text(f"{number}", OUTPUT_TOKENS) for number in range(num_clients)]
        assert (statuses[200], max(watch.nums_sequences)) == (num_clients, CAPACITY)
        page = await (await weft.http_session.get("/metrics")).text()
        assert f"tgi_request_generated_tokens_sum {num_clients * OUTPUT_TOKENS}" in page
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, max_concurrent_requests=CAPACITY)


def test_request_whose_deadline_passes_never_reaches_a_shard(tmp_path):
    async def scenario(weft):
        first = asyncio.create_task(weft.generate("a loom", 30))
        await weft.gate.wait_for_step()
        late = await weft.http_session.post("/generate", json=make_generate_body("late", 5),
                                            headers={"x-request-timeout-ms": "1"})
        assert late.status in {408, 429}  # it expired, or was foreseen to
        weft.gate.release_all()
        assert (await first).status == 200
        assert weft.rpc_counts["Prefill"] == 1
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, gated=True, max_batch_size=1)


def test_full_cache_costs_few_tokens_again_and_nobody_yields_for_ever(tmp_path):
    async def scenario(weft):
        answers = await asyncio.gather(*(weft.generate(f"{number}", 60) for number in range(16)))
        for number, answer in enumerate(answers):
            assert (await answer.json())["generated_text"] == weft.compute_expected_text(f"{number}", 60)
        records = weft.engine.find_latest_request_records("", 100)
        assert len(records) == 16
        assert sum(record.timeline.num_preemptions for record in records) >= 1
        assert max(record.timeline.num_preemptions for record in records) <= 3
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, num_blocks=24)
