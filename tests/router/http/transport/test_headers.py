"""Request and response headers."""

import pytest
from aiohttp.test_utils import make_mocked_request
from support.servers.expected_streams import make_finished_timeline

from router.engine.stream import FinishedEvent
from router.errors import InvalidRequest
from router.http.transport.auth import TENANT
from router.http.transport.headers import (
    REQUEST_COUNTER,
    RequestContext,
    model_and_prompt_headers,
    request_id_header,
    timing_headers,
)
from router.http.transport.outputs import GenerationOutput
from router.model_info import ModelInfo
from router.request import DEFAULT_TENANT, FinishReason, Request, Tenant
from router.scheduler.request_timeline import RequestPhase, RequestTimeline
from router.telemetry.instruments import Counter, MetricDefinition, MetricType
from router.telemetry.request_record_store import RequestRecord, RequestRecordStore
from router.validation.validator import ValidatedRequest


def make_caller(request_ids=None, **headers):
    request = make_mocked_request("POST", "/", {name.replace("_", "-"): value for name, value in headers.items()})
    return RequestContext.from_request(request, request_ids or RequestRecordStore())


def make_timing_headers(timeline, num_tokens=4):
    end = FinishedEvent(FinishReason.LENGTH, "weft", num_tokens, timeline)
    answer = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 5), None), [], [], end)
    return timing_headers([answer], 0.125, 2.0)


# -- requests


def test_client_can_set_the_request_id():
    assert make_caller(x_request_id="order 66/a").request_id == "order 66/a"
    assert make_caller(x_request_id="x" * 128).request_id == "x" * 128


@pytest.mark.parametrize("name", ["", "x" * 129, "é", "a\tb"])
def test_invalid_request_id_is_replaced(name):
    assert len(make_caller(x_request_id=name).request_id) == 32


def test_amazon_trace_id_is_used_as_request_id():
    assert make_caller(x_amzn_trace_id="Root=1").request_id == "Root=1"
    assert make_caller(x_request_id="mine", x_amzn_trace_id="Root=1").request_id == "mine"


def test_each_prompt_of_a_request_has_its_own_id():
    several = make_caller(x_request_id="mine")
    assert [several.for_prompt(index).request_id for index in range(3)] == ["mine", "mine.1", "mine.2"]


def test_generated_request_ids_are_unique():
    assert len({make_caller().request_id for _ in range(3)}) == 3


def test_request_id_in_use_is_replaced():
    accounts = RequestRecordStore()
    accounts.add_unfinished(RequestRecord("mine", "", 1, 0.0, RequestTimeline(0.0)))
    assert make_caller(accounts, x_request_id="mine").request_id != "mine"


def test_response_headers_contain_the_request_id():
    request = make_mocked_request("POST", "/", {"x-request-id": "mine"})
    assert request_id_header(request) == {}
    RequestContext.from_request(request, RequestRecordStore())
    assert request_id_header(request) == {"x-request-id": "mine"}


def test_tenant_comes_from_the_api_key():
    request = make_mocked_request("POST", "/")
    assert RequestContext.from_request(request, RequestRecordStore()).tenant is DEFAULT_TENANT
    request[TENANT] = Tenant("a")
    assert RequestContext.from_request(request, RequestRecordStore()).tenant == Tenant("a")


def test_timeout_counts_from_the_arrival_of_the_request():
    caller = make_caller(x_request_timeout_ms="2500")
    assert caller.deadline == caller.arrived_at + 2.5
    assert make_caller().deadline is None


@pytest.mark.parametrize("text", ["1", "0.5", "1500.", "000000000000250"])
def test_positive_timeout_values_are_accepted(text):
    caller = make_caller(x_request_timeout_ms=text)
    assert caller.deadline == caller.arrived_at + float(text) / 1000


@pytest.mark.parametrize("text", ["", "0", "0.000", "-5", "nan", "inf", "1e3", "1_000", "5s", "0x10", "9" * 400, "٣"])
def test_invalid_timeout_header_is_rejected(text):
    with pytest.raises(InvalidRequest, match="the header `x-request-timeout-ms` must be") as refused:
        _ = make_caller(x_request_timeout_ms=text).deadline
    assert len(str(refused.value)) < 500


# -- answers


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


def test_request_is_counted_once():
    request, counter = make_mocked_request("POST",
                                           "/"), Counter(MetricDefinition("came", MetricType.COUNTER, "Came."), ())
    request[REQUEST_COUNTER] = counter
    for _ in range(2):
        RequestContext.from_request(request, RequestRecordStore())
    assert counter.value == 1
