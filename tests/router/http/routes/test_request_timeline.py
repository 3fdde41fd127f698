"""Explanation of how a request spent its time (/v1/requests/{id}/explain)."""

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import RouterConfig
from router.http.routes.status import (
    CLOCK_OFFSET,
    DEFAULT_LISTED_REQUESTS,
    MAX_NAMED_PROMPTS,
    MEANWHILE_DESCRIPTIONS,
    PHASE_DESCRIPTIONS,
    VALIDATION_PHASE,
    explain_request,
    timeline_json,
)
from router.request import FinishReason
from router.scheduler.sequence import RequestPhase, RequestTimeline
from router.telemetry.phase_overlap import EXPLAINING_PHASES
from router.telemetry.server_metrics import RequestRecord


def make_record(*phases, arrived_at=0.0, started_at=1.0, ended_at=None):
    timeline = RequestTimeline(started_at)
    for moment, cause in phases:
        timeline.enter_phase(cause, moment)
    if ended_at is not None:
        timeline.end(ended_at)
    return RequestRecord("mine", "a", 3, arrived_at, timeline, 2)


def test_every_phase_has_a_sentence():
    assert set(PHASE_DESCRIPTIONS) == {VALIDATION_PHASE, *RequestPhase}


def test_finished_request_is_explained_from_arrival_to_end():
    explanation = timeline_json(make_record((2.0, RequestPhase.PREFILL), (2.5, RequestPhase.DECODE),
                                            (4.0, RequestPhase.PREEMPTED), (4.5, RequestPhase.PREFILL),
                                            (5.0, RequestPhase.DECODE), ended_at=7.0), 100.0, {})
    intervals = [(interval["cause"], interval["start_ms"], interval["ms"]) for interval in explanation.pop("intervals")]
    assert intervals == [
        ("validation", 0.0, 1000.0), ("queue", 1000.0, 1000.0), ("prefill", 2000.0, 500.0), ("decode", 2500.0, 1500.0),
        ("yielded", 4000.0, 500.0), ("prefill", 4500.0, 500.0), ("decode", 5000.0, 2000.0)]
    assert explanation == {
        "id": "mine", "tenant": "a", "state": "over", "error_type": None, "prompt_tokens": 3, "cached_tokens": 0,
        "generated_tokens": 2, "total_ms": 7000.0, "arrived_at": round(CLOCK_OFFSET, 3), "adapter": None,
        "finish_reason": None, "first_token_ms": 2500.0,
        "by_cause": {"validation": 1000.0, "queue": 1000.0, "prefill": 1000.0, "decode": 3500.0, "yielded": 500.0},
        "causes": {cause: PHASE_DESCRIPTIONS[cause]
                   for cause in ("validation", "queue", "prefill", "decode", "yielded")},
        "meanwhile": {}, "meanwhile_causes": {},
    }
    assert json.loads(json.dumps(explanation)) == explanation


def test_unfinished_request_is_explained_until_now():
    explanation = timeline_json(make_record((2.0, RequestPhase.PREFILL)), 2.25, {})
    assert (explanation["state"], explanation["total_ms"]) == ("running", 2250.0)
    assert explanation["intervals"][-1]["ms"] == 250.0


def test_what_others_did_meanwhile_is_named():
    overlaps = {RequestPhase.QUEUE: {RequestPhase.NO_FREE_BLOCKS: 0.5, RequestPhase.BATCH_FULL: 0.00001},
                RequestPhase.DECODE: {RequestPhase.PREFILL: 0.00001}}
    explanation = timeline_json(make_record((2.0, RequestPhase.DECODE), ended_at=7.0), 100.0, overlaps)
    assert explanation["meanwhile"] == {"queue": {"blocks": 500.0}}
    assert explanation["meanwhile_causes"] == {"blocks": MEANWHILE_DESCRIPTIONS[RequestPhase.NO_FREE_BLOCKS]}
    assert json.loads(json.dumps(explanation)) == explanation


def test_longest_prompts_of_the_same_tenant_are_named():
    record = make_record((2.0, RequestPhase.DECODE), ended_at=7.0)
    others = [replace(make_record((2.0, RequestPhase.PREFILL), (2.0 + number / 4, RequestPhase.DECODE)),
                      id=str(number), num_prompt_tokens=100 * number, tenant_name="b" if number == 4 else "a")
              for number in range(6)]
    assert MAX_NAMED_PROMPTS == 3
    assert explain_request(record, others, 9.0)["meanwhile_prompts"] == [
        {"id": "5", "prompt_tokens": 500, "cached_tokens": 0, "ms": 1250.0},
        {"id": "3", "prompt_tokens": 300, "cached_tokens": 0, "ms": 750.0},
        {"id": "2", "prompt_tokens": 200, "cached_tokens": 0, "ms": 500.0}]


def test_sequences_that_generate_at_the_same_time_are_counted():
    record = make_record((2.0, RequestPhase.DECODE), ended_at=7.0)
    others = [replace(make_record((2.0 + number, RequestPhase.DECODE)), id=str(number)) for number in range(3)]
    assert explain_request(record, others, 9.0)["meanwhile_generating"] == 2.4


def test_every_phase_of_others_has_a_sentence():
    assert set(MEANWHILE_DESCRIPTIONS) == EXPLAINING_PHASES


@pytest.mark.slow
@given(st.floats(0, 1e9), st.lists(st.tuples(st.sampled_from(list(RequestPhase)), st.floats(0, 1e4)), max_size=40))
def test_phase_durations_sum_exactly_to_the_total(arrived_at, phases):
    record, moment = make_record(arrived_at=arrived_at, started_at=arrived_at), arrived_at
    for cause, seconds in phases:
        moment += seconds
        record.timeline.enter_phase(cause, moment)
    record.timeline.end(moment)
    explanation = timeline_json(record, moment, {})
    intervals = explanation["intervals"]
    assert (sum(interval["ms"] for interval in intervals)
            == explanation["total_ms"] == sum(explanation["by_cause"].values()))
    ends = [interval["start_ms"] + interval["ms"] for interval in intervals]
    assert [interval["start_ms"] for interval in intervals] == [0.0, *ends[:-1]]
    assert explanation["total_ms"] == pytest.approx((moment - arrived_at) * 1000, abs=0.07)


# -- over HTTP


def test_request_can_be_explained_by_its_id(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate", json={"inputs": "hi"}, headers={"x-request-id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        answer = await client.get("/v1/requests/mine/explain")
        explanation = await answer.json()
        assert answer.headers["Content-Type"] == "application/json"
        assert (explanation["id"], explanation["prompt_tokens"]) == ("mine", 2)
        assert explanation["intervals"][0]["cause"] == "validation"
    serve(scenario)


def test_explanation_has_route_status_and_headers_of_the_response_and_no_secret_of_the_request(serve):
    async def scenario(client, engine):
        await client.post("/generate", json={"inputs": "hi"}, headers={
            "x-request-id": "mine", "User-Agent": "loom/1", "Authorization": "Bearer sk-loom", "Cookie": "a=b"})
        explanation = await (await client.get("/v1/requests/mine/explain")).json()
        exchange = explanation["http"]
        assert (exchange["route"], exchange["status"], exchange["user_agent"]) == ("POST /generate", 200, "loom/1")
        assert float(exchange["response_headers"]["x-total-time"]) >= 0
        assert "sk-loom" not in str(explanation)
        assert "Cookie" not in str(explanation)
        await client.post("/generate", json={"inputs": ""}, headers={"x-request-id": "refused"})
        exchange = (await (await client.get("/v1/requests/refused/explain")).json())["http"]
        assert (exchange["route"], exchange["status"]) == ("POST /generate", 422)
    serve(scenario)


def test_every_prompt_of_a_request_has_its_route(serve):
    async def scenario(client, engine):
        await client.post("/v1/completions", json={"model": "loom", "prompt": ["hi", "ho"]},
                          headers={"x-request-id": "mine"})
        for name in ("mine", "mine.1"):
            explanation = await (await client.get(f"/v1/requests/{name}/explain")).json()
            assert explanation["http"]["route"] == "POST /v1/completions"
    serve(scenario)


def test_explain_accepts_any_valid_request_id(serve):
    async def scenario(client, engine):
        await client.post("/generate", json={"inputs": "hi"}, headers={"x-request-id": "a/b {c}%2F?"})
        answer = await client.get("/v1/requests/a%2Fb%20%7Bc%7D%252F%3F/explain")
        assert (await answer.json())["id"] == "a/b {c}%2F?"
    serve(scenario)


def test_unknown_request_id_is_not_found(serve):
    async def scenario(client, engine):
        answer = await client.get("/v1/requests/mine/explain")
        assert (answer.status, (await answer.json())["error"]["type"]) == (404, "invalid_request_error")
    serve(scenario)


def test_request_can_only_be_explained_to_its_own_tenant(serve, tmp_path):
    (tmp_path / "keys").write_text('{"sk-a": {"tenant": "a"}, "sk-b": {"tenant": "b"}, "sk-a2": {"tenant": "a"}}')

    async def scenario(client, engine):
        headers = {"Authorization": "Bearer sk-a", "x-request-id": "mine"}
        await client.post("/generate", json={"inputs": "hi"}, headers=headers)
        statuses = [(await client.get("/v1/requests/mine/explain", headers={"Authorization": f"Bearer {key}"})).status
                    for key in ("sk-a", "sk-b", "sk-a2", "sk-c")]
        assert statuses == [200, 404, 200, 401]
    serve(scenario, config=RouterConfig(api_keys=str(tmp_path / "keys")))


def test_requests_of_a_tenant_are_listed_the_latest_first(serve, tmp_path):
    (tmp_path / "keys").write_text('{"sk-a": {"tenant": "a"}, "sk-b": {"tenant": "b"}}')

    async def list_requests(client, key):
        answer = await client.get("/v1/requests", headers={"Authorization": f"Bearer {key}"})
        return answer.status, await answer.json()

    async def scenario(client, engine):
        for number, key in enumerate(("sk-a", "sk-b", "sk-a")):
            headers = {"Authorization": f"Bearer {key}", "x-request-id": str(number)}
            await client.post("/generate", json={"inputs": "hi"}, headers=headers)
        status, listed = await list_requests(client, "sk-a")
        assert (status, [request["id"] for request in listed["requests"]]) == (200, ["2", "0"])
        for request in listed["requests"]:
            explanation = await (await client.get(f"/v1/requests/{request['id']}/explain",
                                                  headers={"Authorization": "Bearer sk-a"})).json()
            assert request.items() <= {**explanation, "total_ms": request["total_ms"],
                                       "by_cause": request["by_cause"]}.items()
            assert request["total_ms"] <= explanation["total_ms"]  # they are not over yet
            assert request["by_cause"].keys() == explanation["by_cause"].keys()
        assert (await list_requests(client, "sk-c"))[0] == 401
    serve(scenario, config=RouterConfig(api_keys=str(tmp_path / "keys")))


def test_list_of_requests_is_bounded(serve):
    async def scenario(client, engine):
        for _ in range(DEFAULT_LISTED_REQUESTS + 1):
            await client.post("/generate", json={"inputs": "hi", "parameters": {"max_new_tokens": 1}})
        listed = await (await client.get("/v1/requests")).json()
        assert len(listed["requests"]) == DEFAULT_LISTED_REQUESTS
    serve(scenario)


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
    ("/v1/responses", {"input": "hi"}),
])
def test_request_is_found_by_the_id_of_its_answer(serve, path, body):
    async def scenario(client, engine):
        answer = await client.post(path, json={"model": "loom", **body})
        answer_id = (await answer.json())["id"]
        explanation = await (await client.get(f"/v1/requests/{answer_id}/explain")).json()
        assert explanation["id"] == answer.headers["x-request-id"]
    serve(scenario)


def test_answers_of_a_request_id_that_is_used_twice_have_different_ids(serve):
    async def scenario(client, engine):
        ids = [(await (await client.post("/v1/completions", json={"prompt": "hi"}, headers={"x-request-id": "mine"}))
                .json())["id"] for _ in range(2)]
        assert ids[0] != ids[1]
        assert (await client.get(f"/v1/requests/{ids[0]}/explain")).status == 404
    serve(scenario)


def test_refused_requests_are_listed_and_explained_with_the_reason(serve, tmp_path):
    (tmp_path / "keys").write_text('{"sk-a": {"tenant": "a"}, "sk-b": {"tenant": "b"}}')

    async def scenario(client, engine):
        headers = {"Authorization": "Bearer sk-a", "x-request-id": "mine"}
        served = await client.post("/generate", json={"inputs": "hi"}, headers=headers | {"x-request-id": "earlier"})
        refused = await client.post("/generate", json={"inputs": ""}, headers=headers)
        assert (served.status, refused.status) == (200, 422)
        listed = await (await client.get("/v1/requests", headers={"Authorization": "Bearer sk-a"})).json()
        assert ([(request["id"], request["error_type"], request["prompt_tokens"]) for request in listed["requests"]][-1]
                == ("mine", "validation", 0))
        explanation = await (await client.get("/v1/requests/mine/explain", headers=headers)).json()
        assert (explanation["state"], explanation["error_type"]) == ("over", "validation")
        others = await (await client.get("/v1/requests", headers={"Authorization": "Bearer sk-b"})).json()
        assert others["requests"] == []
    serve(scenario, config=RouterConfig(api_keys=str(tmp_path / "keys")))


def test_refused_request_leaves_the_record_of_an_earlier_one_with_its_id(serve):
    async def scenario(client, engine):
        headers = {"x-request-id": "mine"}
        assert (await client.post("/generate", json={"inputs": "hi"}, headers=headers)).status == 200
        assert (await client.post("/generate", json={"inputs": ""}, headers=headers)).status == 422
        explanation = await (await client.get("/v1/requests/mine/explain")).json()
        assert (explanation["error_type"], explanation["prompt_tokens"]) == (None, 2)
        listed = await (await client.get("/v1/requests")).json()
        assert [request["error_type"] for request in listed["requests"]].count("validation") == 1
    serve(scenario)


def test_requests_are_listed_by_their_filters(serve):
    async def list_ids(client, query):
        answer = await client.get(f"/v1/requests?{query}")
        assert answer.status == 200, await answer.text()
        return {request["id"] for request in (await answer.json())["requests"]}

    async def scenario(client, engine):
        now = time.monotonic()
        for number, (adapter, reason, error, seconds) in enumerate([
                (None, FinishReason.LENGTH, None, 0.5), ("pirate", FinishReason.END_TOKEN, None, 3.0),
                (None, None, "timeout", 2.0), ("", FinishReason.LENGTH, None, 9.0)]):
            timeline = RequestTimeline(now - seconds)
            record = RequestRecord(f"{number}", "", 3, now - seconds, timeline, 2, reason, adapter, error_type=error)
            engine.request_records.add_unfinished(record)
            if number < 3:
                engine.request_records.move_to_finished(record, now)
        for query, expected in {
                "": "0123", "state=over": "012", "state=waiting": "3", "state=running": "", "adapter=pirate": "1",
                "adapter=": "023", "error_type=any": "2", "error_type=timeout": "2", "error_type=overloaded": "",
                "finish_reason=length": "03", "finish_reason=length&state=over": "0", "min_total_ms=1500": "123",
                "limit=1": "3", "limit=2&state=over": "21"}.items():
            assert await list_ids(client, query) == {*expected}, query
        [listed] = (await (await client.get("/v1/requests?adapter=pirate")).json())["requests"]
        assert (listed["adapter"], listed["finish_reason"], listed["first_token_ms"]) == ("pirate", "eos_token", None)
        assert abs(listed["arrived_at"] - time.time() + 3.0) < 1.0
    serve(scenario)


@pytest.mark.parametrize(("query", "reason"), [
    ("limit=501", "`limit` must be from 1 to 500, got 501"),
    ("state=failed", "`state` must be one of waiting, running"),
    ("finish_reason=x", "`finish_reason` must be one of length, eos_token"), ("tenant=a", "'tenant' is no parameter")])
def test_invalid_filter_is_refused(serve, query, reason):
    async def scenario(client, _):
        answer = await client.get(f"/v1/requests?{query}")
        assert answer.status == 400
        assert reason in (await answer.json())["error"]["message"]
    serve(scenario)
