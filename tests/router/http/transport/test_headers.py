"""Request and response headers."""

import pytest
from aiohttp.test_utils import make_mocked_request
from support.expected_streams import lived

from router.engine.stream import FinishedEvent
from router.errors import InvalidRequest
from router.http.transport.auth import TENANT
from router.http.transport.collect import Answer
from router.http.transport.headers import CAME, Caller, compute, identity, timings
from router.request import ANYONE, FinishReason, Request, Tenant
from router.scheduler.plan import ModelFacts
from router.scheduler.timeline import Cause, Story
from router.telemetry.instruments import Counter, Family, Kind
from router.telemetry.request_log import Account, Accounts
from router.validation.validator import Choice


def caller(register=None, **headers):
    request = make_mocked_request("POST", "/", {name.replace("_", "-"): value for name, value in headers.items()})
    return Caller.of(request, register or Accounts())


def told(story, num_tokens=4):
    end = FinishedEvent(FinishReason.LENGTH, "weft", num_tokens, story)
    answer = Answer(Choice(Request("0", (1, 2), 5), None), [], [], end)
    return timings([answer], 0.125, 2.0)


# -- requests


def test_a_client_may_name_its_request():
    assert caller(x_request_id="order 66/a").request_id == "order 66/a"
    assert caller(x_request_id="x" * 128).request_id == "x" * 128


@pytest.mark.parametrize("name", ["", "x" * 129, "é", "a\tb"])
def test_a_name_that_is_none_is_replaced_by_one_of_ours(name):
    assert len(caller(x_request_id=name).request_id) == 32


def test_the_name_that_a_proxy_of_amazon_gives_will_do():
    assert caller(x_amzn_trace_id="Root=1").request_id == "Root=1"
    assert caller(x_request_id="mine", x_amzn_trace_id="Root=1").request_id == "mine"


def test_of_several_things_that_are_asked_for_each_has_a_name():
    several = caller(x_request_id="mine")
    assert [several.part(index).request_id for index in range(3)] == ["mine", "mine.1", "mine.2"]


def test_without_a_name_each_request_has_one_of_ours():
    assert len({caller().request_id for _ in range(3)}) == 3


def test_a_name_that_is_taken_is_replaced():
    accounts = Accounts()
    accounts.open(Account("mine", "", 1, 0.0, Story(0.0)))
    assert caller(accounts, x_request_id="mine").request_id != "mine"


def test_answers_say_which_request_they_belong_to():
    request = make_mocked_request("POST", "/", {"x-request-id": "mine"})
    assert identity(request) == {}
    Caller.of(request, Accounts())
    assert identity(request) == {"x-request-id": "mine"}


def test_the_tenant_is_that_of_the_key():
    request = make_mocked_request("POST", "/")
    assert Caller.of(request, Accounts()).tenant is ANYONE
    request[TENANT] = Tenant("a")
    assert Caller.of(request, Accounts()).tenant == Tenant("a")


def test_time_counts_from_when_the_request_came():
    one = caller(x_request_timeout_ms="2500")
    assert one.deadline == one.came + 2.5
    assert caller().deadline is None


@pytest.mark.parametrize("text", ["1", "0.5", "1500.", "000000000000250"])
def test_any_number_above_zero_is_a_time(text):
    one = caller(x_request_timeout_ms=text)
    assert one.deadline == one.came + float(text) / 1000


@pytest.mark.parametrize("text", ["", "0", "0.000", "-5", "nan", "inf", "1e3", "1_000", "5s", "0x10", "9" * 400, "٣"])
def test_a_time_that_is_none_is_refused_by_name(text):
    with pytest.raises(InvalidRequest, match="the header `x-request-timeout-ms` must be") as refused:
        _ = caller(x_request_timeout_ms=text).deadline
    assert len(str(refused.value)) < 500


# -- answers


def test_what_computes_is_told_and_whether_exactly():
    facts = ModelFacts("m", "cuda", "bfloat16", 512, 4096, 16, 100, world_size=2)
    assert compute(facts, 5) == {"x-compute-type": "2-cuda", "x-compute-characters": "5", "x-weft-exact": "0"}


def test_times_are_told_by_what_they_went_to():
    headers = told(lived(queue=0.25, prefill=0.125, decode=0.375))
    assert {name: headers[name] for name in headers if name.endswith(("-ms", "-reason", "-cached-tokens"))} == {
        "x-queue-ms": "250.0", "x-prefill-ms": "125.0", "x-decode-ms": "375.0", "x-cached-tokens": "0",
        "x-wait-reason": "queue"}


def test_the_names_of_tgi_tell_the_same():
    headers = told(lived(queue=0.25, prefill=0.125, decode=0.375))
    assert (headers["x-queue-time"], headers["x-inference-time"], headers["x-time-per-token"]) == ("250", "500", "125")
    assert (headers["x-total-time"], headers["x-validation-time"]) == ("2000", "125")
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("2", "4")


def test_the_reason_is_what_most_of_the_waiting_was_for():
    story = Story(0.0)
    for moment, cause in ((1.0, Cause.BLOCKS), (2.5, Cause.PREFILL), (3.0, Cause.YIELDED), (4.0, Cause.DECODE)):
        story.turn(cause, moment)
    story.end(9.0)
    headers = told(story)
    assert (headers["x-wait-reason"], headers["x-queue-ms"]) == ("blocks", "3500.0")


def test_who_did_not_wait_has_no_reason():
    assert "x-wait-reason" not in told(lived(queue=0.0005, decode=1.0))


def test_cached_tokens_are_those_of_the_story():
    story = lived()
    story.cached_tokens = 48
    assert told(story)["x-cached-tokens"] == "48"


def test_an_answer_without_tokens_has_times_too():
    assert told(lived(decode=0.5), num_tokens=0)["x-time-per-token"] == "500"


def test_a_request_is_counted_once_by_whoever_wants_to_know():
    request, counter = make_mocked_request("POST", "/"), Counter(Family("came", Kind.COUNTER, "Came."), ())
    request[CAME] = counter
    for _ in range(2):
        Caller.of(request, Accounts())
    assert counter.value == 1
