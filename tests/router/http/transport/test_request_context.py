"""Tests of router/http/transport/request_context.py."""

import pytest
from aiohttp.test_utils import make_mocked_request

from router.errors import InvalidRequest
from router.http.transport.auth import CLIENT, AuthenticatedClient
from router.http.transport.request_context import (
    REQUEST_COUNTER,
    RequestContext,
    model_and_prompt_headers,
    request_id_header,
)
from router.model_info import ModelInfo
from router.request import DEFAULT_TENANT, Tenant
from router.scheduler.request_timeline import RequestTimeline
from router.telemetry.instruments import Counter, MetricDefinition, MetricType
from router.telemetry.request_record_store import RequestRecord, RequestRecordStore


def make_context(request_ids=None, **headers):
    request = make_mocked_request("POST", "/", {name.replace("_", "-"): value for name, value in headers.items()})
    return RequestContext.from_request(request, request_ids or RequestRecordStore())


def test_client_can_set_the_request_id():
    assert make_context(x_request_id="order 66/a").request_id == "order 66/a"
    assert make_context(x_request_id="x" * 128).request_id == "x" * 128


@pytest.mark.parametrize("name", ["", "x" * 129, "é", "a\tb"])
def test_invalid_request_id_is_replaced(name):
    assert len(make_context(x_request_id=name).request_id) == 32


def test_amazon_trace_id_is_used_as_request_id():
    assert make_context(x_amzn_trace_id="Root=1").request_id == "Root=1"
    assert make_context(x_request_id="mine", x_amzn_trace_id="Root=1").request_id == "mine"


def test_each_prompt_of_a_request_has_its_own_id():
    several = make_context(x_request_id="mine")
    assert [several.for_prompt(index).request_id for index in range(3)] == ["mine", "mine.1", "mine.2"]


def test_generated_request_ids_are_unique():
    assert len({make_context().request_id for _ in range(3)}) == 3


def test_request_id_in_use_is_replaced():
    accounts = RequestRecordStore()
    accounts.add_unfinished(RequestRecord("mine", "", 1, 0.0, RequestTimeline(0.0)))
    assert make_context(accounts, x_request_id="mine").request_id != "mine"


def test_response_headers_contain_the_request_id():
    request = make_mocked_request("POST", "/", {"x-request-id": "mine"})
    assert request_id_header(request) == {}
    RequestContext.from_request(request, RequestRecordStore())
    assert request_id_header(request) == {"x-request-id": "mine"}


def test_tenant_comes_from_the_api_key():
    request = make_mocked_request("POST", "/")
    assert RequestContext.from_request(request, RequestRecordStore()).tenant is DEFAULT_TENANT
    request[CLIENT] = AuthenticatedClient(Tenant("a"))
    assert RequestContext.from_request(request, RequestRecordStore()).tenant == Tenant("a")


def test_timeout_counts_from_the_arrival_of_the_request():
    caller = make_context(x_request_timeout_ms="2500")
    assert caller.deadline == caller.arrived_at + 2.5
    assert make_context().deadline is None


@pytest.mark.parametrize("text", ["1", "0.5", "1500.", "000000000000250"])
def test_positive_timeout_values_are_accepted(text):
    caller = make_context(x_request_timeout_ms=text)
    assert caller.deadline == caller.arrived_at + float(text) / 1000


@pytest.mark.parametrize("text", ["", "0", "0.000", "-5", "nan", "inf", "1e3", "1_000", "5s", "0x10", "9" * 400, "٣"])
def test_invalid_timeout_header_is_rejected(text):
    with pytest.raises(InvalidRequest, match="the header `x-request-timeout-ms` must be") as refused:
        _ = make_context(x_request_timeout_ms=text).deadline
    assert len(str(refused.value)) < 500


def test_request_is_counted_once():
    request, counter = make_mocked_request("POST",
                                           "/"), Counter(MetricDefinition("came", MetricType.COUNTER, "Came."), ())
    request[REQUEST_COUNTER] = counter
    for _ in range(2):
        RequestContext.from_request(request, RequestRecordStore())
    assert counter.value == 1


def test_headers_report_compute_device_and_exactness():
    facts = ModelInfo("m", "cuda", "bfloat16", 512, 4096, 16, 100, world_size=2)
    assert model_and_prompt_headers(facts, 5) == {"x-compute-type": "2-cuda", "x-compute-characters": "5",
                                                  "x-weft-exact": "0"}
