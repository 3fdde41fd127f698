"""Tests of router/http/transport/response_headers.py."""

from support.servers.expected_streams import make_finished_timeline

from router.engine.stream import FinishedEvent
from router.http.transport.outputs import GenerationOutput
from router.http.transport.response_headers import model_and_prompt_headers, timing_headers
from router.model_info import ModelInfo
from router.request import FinishReason, Request
from router.scheduler.sequence import RequestPhase, RequestTimeline
from router.validation.validator import ValidatedRequest


def make_timing_headers(timeline, num_tokens=4):
    end = FinishedEvent(FinishReason.LENGTH, "weft", num_tokens, timeline)
    answer = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 5), None), [], [], end)
    return timing_headers([answer], 0.125, 2.0)


def test_headers_report_compute_device_and_exactness():
    facts = ModelInfo("m", "cuda", "bfloat16", 512, 4096, 16, 100, world_size=2)
    assert model_and_prompt_headers(facts, 5) == {"x-compute-type": "2-cuda", "x-compute-characters": "5",
                                                  "x-weft-exact": "0"}


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
