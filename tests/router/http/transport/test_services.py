"""Generating whole answers and reporting their times, independent of the dialect."""

import asyncio
from contextlib import closing
from types import SimpleNamespace

import pytest
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, RequestStream, TokenEvent
from router.errors import GenerationFailed, Overloaded
from router.http.transport.services import (
    GenerationOutput,
    RequestGroupBudget,
    RequestGroupThrottle,
    collect_output,
    gather_or_cancel,
    timing_headers,
)
from router.request import FinishReason, Request
from router.scheduler.sequence import RequestPhase, RequestTimeline
from router.validation.validator import ValidatedRequest


async def finish_after(num_turns, result):
    for _ in range(num_turns):
        await asyncio.sleep(0)
    if isinstance(result, Exception):
        raise result
    return result


def test_results_are_in_the_order_of_the_requests():
    assert asyncio.run(gather_or_cancel([finish_after(3, "a"), finish_after(1, "b")])) == ["a", "b"]


def test_first_failure_cancels_the_others_and_is_raised():
    with pytest.raises(GenerationFailed, match="first"):
        asyncio.run(gather_or_cancel([finish_after(9, GenerationFailed("last")),
                                      finish_after(1, GenerationFailed("first"))]))


VALIDATED_REQUEST = ValidatedRequest(Request("0", (104, 105), 5, prompt_logprobs=True), seed=7)
TOKEN_EVENT = TokenEvent(104, "h", -0.5, False)
FINAL_EVENT = FinishedEvent(FinishReason.END_TOKEN, "hé", 1, make_finished_timeline())


def collect_output_of(*events):
    async def scenario():
        stream = RequestStream(VALIDATED_REQUEST.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        for event in events:
            stream.put(event)
        return await collect_output(stream, VALIDATED_REQUEST)
    return asyncio.run(scenario())


def test_output_contains_all_events():
    answer = collect_output_of(PromptLogprobsEvent(1, (-2.0,)), TOKEN_EVENT, FINAL_EVENT)
    assert (answer.tokens, answer.prompt_logprobs, answer.final_event) == ([TOKEN_EVENT], [None, -2.0], FINAL_EVENT)
    assert answer.mean_logprob == -0.5


def test_tokens_do_not_wake_the_waiting_task_before_the_end():
    async def scenario():
        stream = RequestStream(VALIDATED_REQUEST.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        task = asyncio.create_task(collect_output(stream, VALIDATED_REQUEST))
        await asyncio.sleep(0)
        stream.put(TOKEN_EVENT)
        assert stream.num_bytes == 0
        stream.put(TOKEN_EVENT)
        stream.put(FINAL_EVENT)
        assert (await task).tokens == [TOKEN_EVENT, TOKEN_EVENT]
    asyncio.run(scenario())


def test_end_after_cancellation_is_no_error():
    async def scenario():
        stream = RequestStream(VALIDATED_REQUEST.request, 10**6, pytest.fail, pytest.fail, pytest.fail)
        task = asyncio.create_task(collect_output(stream, VALIDATED_REQUEST))
        await asyncio.sleep(0)
        task.cancel()
        stream.put(FINAL_EVENT)
        await asyncio.wait([task])
        assert task.cancelled()
    asyncio.run(scenario())


def test_failure_is_raised_to_the_caller():
    with pytest.raises(GenerationFailed):
        collect_output_of(TOKEN_EVENT, FailedEvent(GenerationFailed("broken")))


class ServicesWithPlaces:
    """Double of the services that has room for a number of requests; `unfinished` are those that have a place."""

    def __init__(self, num_places):
        self.num_places, self.submitted, self.unfinished = num_places, [], set()
        self.request_group_budget = RequestGroupBudget(100)

    def submit(self, choice, _):
        if len(self.unfinished) >= self.num_places:
            raise Overloaded("full")
        self.submitted.append(choice)
        self.unfinished.add(choice)
        return SimpleNamespace(choice=choice, close=lambda: self.unfinished.discard(choice))


def run_turns(services, groups, max_groups, handle):
    async def main():
        with closing(RequestGroupThrottle(services, SimpleNamespace(deadline=None), groups, max_groups)) as runner:
            runner.submit()
            await runner.run(handle)
    asyncio.run(main())
    assert (services.unfinished, services.request_group_budget.num_left) == (set(), 100)


def test_further_groups_of_all_requests_share_a_budget():
    """Regression: two requests of many prompts had everybody else refused until they ended."""
    services, sizes = ServicesWithPlaces(100), []
    services.request_group_budget.num_left = 6

    async def handle(*_):
        sizes.append(len(services.unfinished))
        await asyncio.sleep(0)

    async def run_one(name):
        groups = [[f"{name}{index}a", f"{name}{index}b"] for index in range(9)]
        with closing(RequestGroupThrottle(services, SimpleNamespace(deadline=None), groups, 50)) as runner:
            runner.submit()
            await runner.run(handle)

    async def main():
        await asyncio.gather(*map(run_one, "xyz"))
    asyncio.run(main())
    assert len(services.submitted) == 54
    assert max(sizes) == 3 * 2 + 6
    assert services.request_group_budget.num_left == 6


def test_later_group_waits_while_others_have_all_the_room():
    services = ServicesWithPlaces(1)

    async def handle(index, _):
        if index == 0:
            services.num_places = 0
            asyncio.get_running_loop().call_later(0.2, setattr, services, "num_places", 1)

    run_turns(services, [["a"], ["b"]], 1, handle)
    assert services.submitted == ["a", "b"]


def test_groups_run_in_order_and_a_limited_number_at_once():
    services, sizes = ServicesWithPlaces(100), []

    async def handle(index, streams):
        assert [stream.choice for stream in streams] == [f"{index}a", f"{index}b"]
        sizes.append(len(services.unfinished))
        await asyncio.sleep(0)

    run_turns(services, [[f"{index}a", f"{index}b"] for index in range(9)], 3, handle)
    assert services.submitted == [f"{index}{letter}" for index in range(9) for letter in "ab"]
    assert max(sizes) == 6


def test_turns_use_places_that_others_have_left():
    services, sizes = ServicesWithPlaces(1), []

    async def handle(index, _):
        services.num_places = 1 if index < 3 else 10
        sizes.append(len(services.unfinished))
        await asyncio.sleep(0)

    run_turns(services, [[index] for index in range(12)], 4, handle)
    assert (sizes[:4], max(sizes)) == ([1] * 4, 4)


def test_group_without_room_for_all_its_requests_waits():
    services = ServicesWithPlaces(3)

    async def handle(_, streams):
        assert len(services.unfinished) == len(streams) == 2
        await asyncio.sleep(0)

    run_turns(services, [["a", "b"], ["c", "d"]], 4, handle)
    assert services.submitted == ["a", "b", "c", "c", "d"]


@pytest.mark.parametrize("num_places", [0, 1])
def test_first_group_without_room_is_rejected(num_places):
    services = ServicesWithPlaces(num_places)
    with pytest.raises(Overloaded):
        run_turns(services, [["a", "b"]], 4, None)
    assert services.unfinished == set()


def test_failure_of_a_group_ends_all():
    async def handle(index, _):
        if index == 1:
            raise GenerationFailed("broken")
        await asyncio.Event().wait()

    services = ServicesWithPlaces(10)
    with pytest.raises(GenerationFailed, match="broken"):
        run_turns(services, [[index] for index in range(5)], 3, handle)
    assert (services.submitted, services.unfinished) == ([0, 1, 2], set())


def make_timing_headers(timeline, num_tokens=4):
    end = FinishedEvent(FinishReason.LENGTH, "weft", num_tokens, timeline)
    answer = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 5), None), [], [], end)
    return timing_headers([answer], 0.125, 2.0)


def test_headers_report_time_per_phase():
    headers = make_timing_headers(make_finished_timeline(queue_seconds=0.25, prefill_seconds=0.125,
                                                         decode_seconds=0.375))
    assert {name: headers[name] for name in headers if name.endswith(("-ms", "-reason", "-cached-tokens"))} == {
        "x-queue-ms": "250.0", "x-prefill-ms": "125.0", "x-decode-ms": "375.0", "x-cached-tokens": "0",
        "x-wait-reason": "queue"}


def test_tgi_timing_headers_report_the_same_times():
    headers = make_timing_headers(make_finished_timeline(queue_seconds=0.25, prefill_seconds=0.125,
                                                         decode_seconds=0.375))
    assert (headers["x-queue-time"], headers["x-inference-time"], headers["x-time-per-token"]) == ("250", "500", "125")
    assert (headers["x-total-time"], headers["x-validation-time"]) == ("2000", "125")
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("2", "4")


def test_wait_reason_is_the_longest_waiting_phase():
    timeline = RequestTimeline(0.0)
    for moment, cause in ((1.0, RequestPhase.NO_FREE_BLOCKS), (2.5, RequestPhase.PREFILL),
                          (3.0, RequestPhase.PREEMPTED), (4.0, RequestPhase.DECODE)):
        timeline.enter_phase(cause, moment)
    timeline.end(9.0)
    headers = make_timing_headers(timeline)
    assert (headers["x-wait-reason"], headers["x-queue-ms"]) == ("blocks", "3500.0")


def test_request_that_did_not_wait_has_no_wait_reason():
    assert "x-wait-reason" not in make_timing_headers(make_finished_timeline(queue_seconds=0.0005, decode_seconds=1.0))


def test_cached_tokens_come_from_the_timeline():
    timeline = make_finished_timeline()
    timeline.num_prefix_hit_tokens = 48
    assert make_timing_headers(timeline)["x-cached-tokens"] == "48"


def test_response_without_tokens_has_timing_headers():
    assert make_timing_headers(make_finished_timeline(decode_seconds=0.5), num_tokens=0)["x-time-per-token"] == "500"
