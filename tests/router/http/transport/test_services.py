"""Generating whole answers and reporting their times, independent of the dialect."""

import asyncio

import pytest
from support.servers.expected_streams import make_finished_timeline

from router.engine.stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, RequestStream, TokenEvent
from router.errors import GenerationFailed
from router.http.transport.services import GenerationOutput, collect_output, gather_or_cancel, timing_headers
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
